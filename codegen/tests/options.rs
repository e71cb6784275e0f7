//! Owns the proof that each option does what its name says, and nothing when it is not given.

mod common;

use byway_build::{Builder, configure};
use common::Project;

const SOURCE: &str = r#"
syntax = "proto3";
package shop.v1;

import "google/protobuf/duration.proto";

// A shop.
service Shop {
  // Sells.
  rpc Sell(Order) returns (Receipt);
  rpc Watch(Order) returns (stream Receipt);
  rpc Haggle(stream Order) returns (stream Receipt);
  rpc Deliver(stream Order) returns (Receipt);
}

service Stock {
  rpc Count(Order) returns (google.protobuf.Duration);
}

// An order.
message Order {
  // What to sell.
  bytes item = 1;
  bytes note = 2;
  map<string, bytes> extras = 3;
  map<string, uint32> counts = 4;
  Receipt last = 5;
  Color color = 6;
  google.protobuf.Duration patience = 7;

  oneof payment {
    bytes token = 8;
    string card = 9;
  }
}

message Receipt {
  bytes seal = 1;
}

enum Color {
  COLOR_NONE = 0;
  COLOR_RED = 1;
}
"#;

/// What is generated for `SOURCE`, all white space taken as one blank.
fn generate(builder: Builder) -> String {
    let project = Project::new(&[("shop.proto", SOURCE)]);
    let files = project.compile(builder, "shop.proto").expect("the source is valid");
    squeeze(&files["shop.v1.rs"])
}

fn squeeze(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Asserts that `text` is generated with the option, and not without.
#[track_caller]
fn assert_adds(builder: Builder, text: &str) {
    let with = generate(builder);
    assert!(with.contains(text), "`{text}` is not in {with}");
    let without = generate(configure());
    assert!(!without.contains(text), "`{text}` is there without the option");
}

/// Asserts that `text` is generated without the option, and not with it.
#[track_caller]
fn assert_removes(builder: Builder, text: &str) {
    let with = generate(builder);
    assert!(!with.contains(text), "`{text}` is there in spite of the option");
    let without = generate(configure());
    assert!(without.contains(text), "`{text}` is not in {without}");
}

#[test]
fn build_client() {
    assert_removes(configure().build_client(false), "pub mod shop_client");
    assert!(generate(configure().build_client(false)).contains("pub mod shop_server"));
}

#[test]
fn build_server() {
    assert_removes(configure().build_server(false), "pub mod shop_server");
    assert!(generate(configure().build_server(false)).contains("pub mod shop_client"));
}

#[test]
fn messages_alone() {
    let code = generate(configure().build_client(false).build_server(false));
    assert!(code.contains("pub struct Order"));
    assert!(!code.contains("pub mod shop"));
}

#[test]
fn build_transport() {
    assert_removes(configure().build_transport(false), "pub async fn connect(");
    assert_removes(configure().build_transport(false), "::byway::Channel>");
}

#[test]
fn emit_package() {
    let builder = || configure().emit_package(false);
    assert_removes(builder(), "\"/shop.v1.Shop/Sell\"");
    assert_adds(builder(), "\"/Shop/Sell\"");
    assert_adds(builder(), "SERVICE_NAME: &str = \"Shop\"");
}

#[test]
fn use_arc_self() {
    let builder = || configure().use_arc_self(true);
    assert_adds(builder(), "async fn sell( self: Arc<Self>,");
    assert_adds(builder(), "T::sell(inner, request).await");
    assert_removes(builder(), "T::sell(&inner, request).await");
}

#[test]
fn generate_default_stubs() {
    let builder = || configure().generate_default_stubs(true);
    assert_adds(builder(), "Err(::byway::Status::unimplemented(\"Not yet implemented\"))");
    assert_adds(builder(), "::byway::Response<BoxStream<super::Receipt>>");
    assert_removes(builder(), "type WatchStream");
    assert_removes(builder(), "type HaggleStream");
}

#[test]
fn client_attributes() {
    assert_adds(
        configure().client_mod_attribute(".shop", "#[cfg(feature = \"client\")]"),
        "#[cfg(feature = \"client\")] #[allow(dead_code, missing_docs, unreachable_pub, clippy::all, clippy::pedantic)] \
         pub mod shop_client",
    );
    assert_adds(
        configure().client_mod_attribute("shop.v1", "#[cfg(a)]"),
        "#[cfg(a)] #[allow(dead_code, missing_docs, unreachable_pub, clippy::all, clippy::pedantic)] pub mod stock_client",
    );
    assert_adds(
        configure().client_attribute("Shop", "#[derive(Hash)]"),
        "#[derive(Hash)] #[derive(Debug, Clone)] pub struct ShopClient<T>",
    );
}

#[test]
fn server_attributes() {
    assert_adds(
        configure().server_mod_attribute(".shop.v1", "#[cfg(a)]"),
        "#[cfg(a)] #[allow(dead_code, missing_docs, unreachable_pub, clippy::all, clippy::pedantic)] pub mod shop_server",
    );
    assert_adds(
        configure().server_attribute(".shop.v1.Shop", "#[derive(Hash)]"),
        "#[derive(Hash)] #[derive(Debug)] pub struct ShopServer<T>",
    );
    assert_adds(
        configure().trait_attribute(".", "#[mockall::automock] #[cfg(b)]"),
        "#[mockall::automock] #[cfg(b)] #[async_trait] pub trait Shop",
    );
}

#[test]
fn attributes_reach_only_what_their_path_covers() {
    let code = generate(configure().client_attribute("Stock", "#[derive(Hash)]"));
    assert!(code.contains("#[derive(Hash)] #[derive(Debug, Clone)] pub struct StockClient"));
    assert_eq!(code.matches("#[derive(Hash)]").count(), 1);
}

#[test]
fn type_message_enum_and_field_attributes() {
    let order = "#[cfg(x)] #[derive(Clone, PartialEq, ::byway::codegen::prost::Message)] \
                 #[prost(prost_path = \"::byway::codegen::prost\")] pub struct Order";
    assert_adds(configure().type_attribute(".", "#[cfg(x)]"), order);
    assert_adds(configure().message_attribute("Order", "#[cfg(x)]"), order);
    let messages = generate(configure().message_attribute(".", "#[cfg(x)]"));
    let types = generate(configure().type_attribute(".", "#[cfg(x)]"));
    let enums = generate(configure().enum_attribute(".", "#[cfg(x)]"));
    assert_eq!(messages.matches("#[cfg(x)]").count(), 2, "messages");
    assert_eq!(enums.matches("#[cfg(x)]").count(), 2, "an enum and a oneof");
    assert_eq!(types.matches("#[cfg(x)]").count(), 4, "all of them");
    assert_adds(configure().field_attribute("Receipt.seal", "#[serde(skip)]"), "#[serde(skip)] pub seal:");
}

#[test]
fn extern_path() {
    let builder = || configure().extern_path(".shop.v1.Receipt", "::receipts::Receipt");
    assert_removes(builder(), "pub struct Receipt");
    assert_adds(builder(), "Option<::receipts::Receipt>");
    assert_adds(builder(), "Result<::byway::Response<::receipts::Receipt>, ::byway::Status>");
}

#[test]
fn bytes_are_bytes_unless_vec_bytes_says_otherwise() {
    const BYTES: &str = "::byway::codegen::prost::bytes::Bytes";
    const VEC: &str = "::byway::codegen::prost::alloc::vec::Vec<u8>";
    let counts = |code: &str| (code.matches(BYTES).count(), code.matches(VEC).count());
    assert_eq!(counts(&generate(configure())), (5, 0));
    assert_eq!(counts(&generate(configure().vec_bytes("."))), (0, 5));
    assert_eq!(counts(&generate(configure().vec_bytes(".shop.v1.Order"))), (1, 4));
    assert_eq!(counts(&generate(configure().vec_bytes("seal").vec_bytes("Order.note"))), (3, 2));

    let code = generate(configure().vec_bytes(".shop.v1.Order.note"));
    assert!(code.contains(&format!("#[prost(bytes = \"bytes\", tag = \"1\")] pub item: {BYTES}")));
    assert!(code.contains(&format!("#[prost(bytes = \"vec\", tag = \"2\")] pub note: {VEC}")));

    let code = generate(configure().vec_bytes("Order.extras"));
    assert!(code.contains(&format!("String, {VEC}, >")), "the values of a map");
    let code = generate(configure().vec_bytes("Order.token"));
    assert!(code.contains(&format!("Token({VEC})")), "a member of a oneof");
}

#[test]
fn btree_map_and_boxed() {
    assert_adds(
        configure().btree_map("Order.counts"),
        "pub counts: ::byway::codegen::prost::alloc::collections::BTreeMap<",
    );
    let both = generate(configure().btree_map("counts").btree_map("extras"));
    assert!(!both.contains("HashMap"), "paths add up");
    assert_adds(
        configure().boxed("Order.last"),
        "pub last: ::core::option::Option< ::byway::codegen::prost::alloc::boxed::Box<Receipt>, >",
    );
}

#[test]
fn skip_debug() {
    assert_adds(configure().skip_debug(["Receipt"]), "#[prost(skip_debug)] pub struct Receipt");
}

#[test]
fn disable_comments() {
    let none = || configure().disable_comments(["."]);
    for comment in ["/// A shop.", "/// Sells.", "/// An order.", "/// What to sell."] {
        assert_removes(none(), comment);
    }
    assert_adds(none(), "/// Calls `shop.v1.Shop/Sell`. pub async fn sell");

    let method = || configure().disable_comments(["shop.v1.Shop.Sell"]);
    assert_removes(method(), "/// Sells.");
    assert!(generate(method()).contains("/// A shop."));
}

#[test]
fn compile_well_known_types() {
    let project = Project::new(&[("shop.proto", SOURCE)]);
    let builder = configure().compile_well_known_types(true);
    let files = project.compile(builder, "shop.proto").expect("the source is valid");
    assert!(files["google.protobuf.rs"].contains("pub struct Duration"));
    let shop = squeeze(&files["shop.v1.rs"]);
    assert!(shop.contains("Option<super::super::google::protobuf::Duration>"));
    assert!(shop.contains("::byway::Response<super::super::super::google::protobuf::Duration>"));

    assert!(generate(configure()).contains("Option<::byway::codegen::prost_types::Duration>"));
}

#[test]
fn include_file() {
    let project = Project::new(&[
        ("a.proto", "syntax = \"proto3\"; package a; import \"b.proto\"; message A { x.b.B b = 1; }"),
        ("b.proto", "syntax = \"proto3\"; package x.b; import \"c.proto\"; message B { C c = 1; }"),
        ("c.proto", "syntax = \"proto3\"; message C {}"),
    ]);
    let builder = configure().include_file("all.rs");
    let files = project.compile(builder, "a.proto").expect("the sources are valid");
    assert_eq!(
        files["all.rs"],
        "// @generated by byway-build\n\n\
         include!(\"_.rs\");\n\
         pub mod a {\n    include!(\"a.rs\");\n}\n\
         pub mod x {\n    pub mod b {\n        include!(\"x.b.rs\");\n    }\n}\n"
    );
    assert_eq!(files.len(), 4);
}

#[test]
fn a_package_is_one_file_named_after_it() {
    let project = Project::new(&[
        ("a.proto", "syntax = \"proto3\"; package type.v1; import \"b.proto\"; message A { B b = 1; }"),
        ("b.proto", "syntax = \"proto3\"; package type.v1; message B {}"),
    ]);
    let files = project.compile(configure(), "a.proto").expect("the sources are valid");
    let names: Vec<_> = files.keys().collect();
    assert_eq!(names, ["type.v1.rs"], "the name is fit for include_proto!(\"type.v1\")");
    assert!(files["type.v1.rs"].starts_with("// @generated by byway-build from a.proto, b.proto\n"));
}

#[test]
fn an_rpc_called_like_a_function_of_every_client_has_an_underscore_there() {
    let source = "syntax = \"proto3\"; message M {} service S {
        rpc New(M) returns (M); rpc Connect(M) returns (M); rpc Other(M) returns (M); }";
    let project = Project::new(&[("s.proto", source)]);
    for build_transport in [true, false] {
        let builder = configure().build_transport(build_transport);
        let files = project.compile(builder, "s.proto").expect("the source is valid");
        let code = squeeze(&files["_.rs"]);
        for client in ["pub async fn new_(", "pub async fn connect_(", "pub async fn other("] {
            assert!(code.contains(client), "{client}");
        }
        for server in ["async fn new( &self", "async fn connect( &self", "\"/S/Connect\""] {
            assert!(code.contains(server), "{server}");
        }
    }
}

#[test]
fn a_trait_that_hides_an_imported_name_leaves_it_reachable() {
    let source = "syntax = \"proto3\"; message M {}
        service Result { rpc Call(M) returns (M); } service Service {} service T {}";
    let project = Project::new(&[("s.proto", source)]);
    let files = project.compile(configure(), "s.proto").expect("the source is valid");
    let code = squeeze(&files["_.rs"]);
    for text in [
        "-> ::core::result::Result<::byway::Response<super::M>, ::byway::Status>;",
        "impl<T, B> ::byway::codegen::Service<http::Request<B>> for ServiceServer<T>",
        "impl<T: self::T> Direct for TServer<T>",
    ] {
        assert!(code.contains(text), "{text}");
    }
}

#[test]
fn service_generator_works_in_a_configuration_of_prost_build() {
    let project = Project::new(&[("shop.proto", SOURCE)]);
    let set = protox::compile([project.path("shop.proto")], [project.path("")]).expect("the source is valid");
    prost_build::Config::new()
        .out_dir(project.out_dir())
        .service_generator(configure().build_server(false).service_generator())
        .compile_fds(set)
        .expect("generated code");
    let code = &common::read_all(&project.out_dir())["shop.v1.rs"];
    assert!(code.contains("pub struct ShopClient<T>"));
    assert!(!code.contains("pub struct ShopServer<T>"));
    assert!(code.contains("pub seal: ::prost::alloc::vec::Vec<u8>"), "messages are prost's");
}

#[test]
#[should_panic(expected = "`#[`, given for `.`, is not an attribute")]
fn service_generator_panics_when_an_attribute_is_none() {
    let _ = configure().client_attribute(".", "#[").service_generator();
}
