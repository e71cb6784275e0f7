//! Owns the looks of generated code.
//!
//! Invariant: the same tokens always give the same text, laid out as rustfmt would, with a blank
//! line between items as a person would leave one.
//!
//! Never changes what the code means.

use syn::{Attribute, File, ImplItem, Item, TraitItem, parse_quote};

/// The text of `file`.
pub(crate) fn rust(mut file: File) -> String {
    space_items(&mut file.items);
    let text = prettyplease::unparse(&file);
    let mut spaced = String::with_capacity(text.len());
    for line in text.lines() {
        if line.trim_start() != MARK_AS_PRINTED {
            spaced.push_str(line);
        }
        spaced.push('\n');
    }
    spaced
}

/// prettyplease leaves no blank lines, so a comment that nobody else writes stands for each
/// until the text is there.
const MARK: &str = "\u{1}";
const MARK_AS_PRINTED: &str = "///\u{1}";

fn space_items(items: &mut [Item]) {
    let mut follows_line = true;
    for (index, item) in items.iter_mut().enumerate() {
        match item {
            Item::Mod(module) => {
                if let Some((_, items)) = &mut module.content {
                    space_items(items);
                }
            }
            Item::Impl(block) => space(&mut block.items, |item| match item {
                ImplItem::Const(item) => Some((&mut item.attrs, true)),
                ImplItem::Type(item) => Some((&mut item.attrs, true)),
                ImplItem::Fn(item) => Some((&mut item.attrs, false)),
                _ => None,
            }),
            Item::Trait(block) => space(&mut block.items, |item| match item {
                TraitItem::Const(item) => Some((&mut item.attrs, true)),
                TraitItem::Type(item) => Some((&mut item.attrs, true)),
                TraitItem::Fn(item) => Some((&mut item.attrs, false)),
                _ => None,
            }),
            _ => {}
        }
        let Some((attributes, is_line)) = (match item {
            Item::Const(item) => Some((&mut item.attrs, true)),
            Item::Static(item) => Some((&mut item.attrs, true)),
            Item::Use(item) => Some((&mut item.attrs, true)),
            Item::Enum(item) => Some((&mut item.attrs, false)),
            Item::Impl(item) => Some((&mut item.attrs, false)),
            Item::Mod(item) => Some((&mut item.attrs, false)),
            Item::Struct(item) => Some((&mut item.attrs, false)),
            Item::Trait(item) => Some((&mut item.attrs, false)),
            _ => None,
        }) else {
            continue;
        };
        space_one(index, attributes, is_line, &mut follows_line);
    }
}

/// Does for the items of a block what `space_items` does for those of a module; `parts` gives an
/// item's attributes, and whether it is of the kind that is written on one line.
fn space<T>(items: &mut [T], parts: impl Fn(&mut T) -> Option<(&mut Vec<Attribute>, bool)>) {
    let mut follows_line = true;
    for (index, item) in items.iter_mut().enumerate() {
        if let Some((attributes, is_line)) = parts(item) {
            space_one(index, attributes, is_line, &mut follows_line);
        }
    }
}

/// Only lines without comments may follow each other closely.
fn space_one(index: usize, attributes: &mut Vec<Attribute>, is_line: bool, follows_line: &mut bool) {
    let is_close = is_line && *follows_line && attributes.is_empty();
    *follows_line = is_line;
    if index > 0 && !is_close {
        attributes.insert(0, parse_quote!(#[doc = #MARK]));
    }
}

#[cfg(test)]
mod tests {
    fn rust(source: &str) -> String {
        super::rust(syn::parse_file(source).expect("valid Rust"))
    }

    #[test]
    fn blank_lines_go_between_items_and_nowhere_else() {
        let source = "
            use a::b; use a::c; const A: u8 = 1;
            struct S { a: u8, b: u8 }
            impl T for S { type X = u8; type Y = u8; fn f() {} /// doc
                fn g() { let a = 1; f(a); } }
            mod m { use x::y; pub trait T { /// one
                type A; /// two
                type B; fn f(); } }
            static B: u8 = 2; static C: u8 = 3;";
        let expected = "\
use a::b;
use a::c;
const A: u8 = 1;

struct S {
    a: u8,
    b: u8,
}

impl T for S {
    type X = u8;
    type Y = u8;

    fn f() {}

    /// doc
    fn g() {
        let a = 1;
        f(a);
    }
}

mod m {
    use x::y;

    pub trait T {
        /// one
        type A;

        /// two
        type B;

        fn f();
    }
}

static B: u8 = 2;
static C: u8 = 3;
";
        assert_eq!(rust(source), expected);
    }

    #[test]
    fn formatting_again_changes_nothing() {
        let once = rust("mod a { struct A; struct B; fn f() {} }");
        assert_eq!(rust(&once), once);
    }
}
