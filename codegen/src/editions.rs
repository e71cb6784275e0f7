//! Owns the translation of protobuf editions into the syntax that prost knows.
//!
//! Invariant: a lowered file means on the wire, and in the presence of its fields, what the
//! original meant. Everything is expressed in proto3 terms, field by field.
//!
//! Never reads `prost_types` for features: its descriptors do not have them, so the encoded file
//! is decoded a second time into the small mirror below.
//!
//! Field numbers are those of `google/protobuf/descriptor.proto` (protobuf 35).

use prost::Message;
use prost_types::{
    DescriptorProto, FieldDescriptorProto, FieldOptions, FileDescriptorProto,
    field_descriptor_proto::{Label, Type},
};

/// What `FileDescriptorProto.syntax` says in a file that has an edition.
pub(crate) const SYNTAX: &str = "editions";

/// Rewrites `file`, which is the decoded form of `encoded`, if it uses editions.
pub(crate) fn lower(file: &mut FileDescriptorProto, encoded: &[u8]) -> Result<(), prost::DecodeError> {
    if file.syntax() != SYNTAX {
        return Ok(());
    }
    let mirror = FileMirror::decode(encoded)?;
    let features = Features::OF_EDITIONS.with(mirror.options.and_then(|o| o.features));
    let package = match file.package() {
        "" => String::new(),
        package => format!(".{package}"),
    };
    for (message, mirror) in file.message_type.iter_mut().zip(&mirror.message_type) {
        lower_message(message, mirror, &package, features);
    }
    file.syntax = Some("proto3".to_owned());
    Ok(())
}

fn lower_message(message: &mut DescriptorProto, mirror: &MessageMirror, scope: &str, outer: Features) {
    let name = format!("{scope}.{}", message.name());
    let features = outer.with(mirror.options.as_ref().and_then(|o| o.features));
    let map_entries: Vec<String> = (message.nested_type.iter())
        .filter(|nested| is_map_entry(nested))
        .map(|nested| format!("{name}.{}", nested.name()))
        .collect();
    for (field, mirror) in message.field.iter_mut().zip(&mirror.field) {
        // The entries of a map are length-prefixed whatever the features say.
        if !map_entries.iter().any(|entry| entry == field.type_name()) {
            let own = mirror.options.as_ref().and_then(|o| o.features);
            lower_field(field, features.with(own));
        }
    }
    for (nested, mirror) in message.nested_type.iter_mut().zip(&mirror.nested_type) {
        if !is_map_entry(nested) {
            lower_message(nested, mirror, &name, features);
        }
    }
}

fn is_map_entry(message: &DescriptorProto) -> bool {
    message.options.as_ref().is_some_and(|o| o.map_entry())
}

fn lower_field(field: &mut FieldDescriptorProto, features: Features) {
    match field.label() {
        Label::Repeated => {
            let packed = features.repeated_encoding == PACKED;
            let options = field.options.get_or_insert_with(FieldOptions::default);
            options.packed = Some(packed);
        }
        Label::Optional if field.oneof_index.is_none() => {
            // Messages always have presence, and prost knows that without being told.
            let is_message = field.r#type() == Type::Message;
            match features.presence {
                EXPLICIT if !is_message => field.proto3_optional = Some(true),
                LEGACY_REQUIRED => field.set_label(Label::Required),
                _ => {}
            }
        }
        Label::Optional | Label::Required => {}
    }
    if field.r#type() == Type::Message && features.message_encoding == DELIMITED {
        field.set_type(Type::Group);
        if field.label() == Label::Optional && field.oneof_index.is_none() {
            field.proto3_optional = Some(true);
        }
    }
}

const EXPLICIT: i32 = 1;
const LEGACY_REQUIRED: i32 = 3;
const PACKED: i32 = 1;
const LENGTH_PREFIXED: i32 = 1;
const DELIMITED: i32 = 2;

/// The features in force at one place, each the number of its enum value.
#[derive(Clone, Copy)]
struct Features {
    presence: i32,
    repeated_encoding: i32,
    message_encoding: i32,
}

impl Features {
    /// What editions 2023 and 2024 start from.
    const OF_EDITIONS: Self =
        Self { presence: EXPLICIT, repeated_encoding: PACKED, message_encoding: LENGTH_PREFIXED };

    fn with(self, own: Option<FeaturesMirror>) -> Self {
        let own = own.unwrap_or_default();
        Self {
            presence: own.field_presence.unwrap_or(self.presence),
            repeated_encoding: own.repeated_field_encoding.unwrap_or(self.repeated_encoding),
            message_encoding: own.message_encoding.unwrap_or(self.message_encoding),
        }
    }
}

#[derive(Clone, PartialEq, Message)]
struct FileMirror {
    #[prost(message, repeated, tag = "4")]
    message_type: Vec<MessageMirror>,
    #[prost(message, optional, tag = "8")]
    options: Option<FileOptionsMirror>,
}

#[derive(Clone, PartialEq, Message)]
struct MessageMirror {
    #[prost(message, repeated, tag = "2")]
    field: Vec<FieldMirror>,
    #[prost(message, repeated, tag = "3")]
    nested_type: Vec<MessageMirror>,
    #[prost(message, optional, tag = "7")]
    options: Option<MessageOptionsMirror>,
}

#[derive(Clone, PartialEq, Message)]
struct FieldMirror {
    #[prost(message, optional, tag = "8")]
    options: Option<FieldOptionsMirror>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct FileOptionsMirror {
    #[prost(message, optional, tag = "50")]
    features: Option<FeaturesMirror>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct MessageOptionsMirror {
    #[prost(message, optional, tag = "12")]
    features: Option<FeaturesMirror>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct FieldOptionsMirror {
    #[prost(message, optional, tag = "21")]
    features: Option<FeaturesMirror>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct FeaturesMirror {
    #[prost(int32, optional, tag = "1")]
    field_presence: Option<i32>,
    #[prost(int32, optional, tag = "3")]
    repeated_field_encoding: Option<i32>,
    #[prost(int32, optional, tag = "5")]
    message_encoding: Option<i32>,
}
