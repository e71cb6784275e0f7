//! Owns the meaning of the path patterns that options take.
//!
//! Invariant: a pattern means the same for services and methods, which are matched here, as it
//! means to prost for messages and fields.
//!
//! Never looks at Rust names: patterns are written in protobuf names.

/// Whether `pattern` covers the fully qualified protobuf name `name` (no leading dot).
///
/// `.` covers everything, `.a.b` covers `a.b` and all that is inside it, and `b.C` without a
/// leading dot covers every name that ends with these segments.
pub(crate) fn matches(pattern: &str, name: &str) -> bool {
    let covered = |rest: Option<&str>, is_boundary: fn(&str) -> bool| {
        rest.is_some_and(|rest| rest.is_empty() || is_boundary(rest))
    };
    match pattern.strip_prefix('.') {
        Some("") => true,
        Some(prefix) => covered(name.strip_prefix(prefix), |rest| rest.starts_with('.')),
        None if pattern.is_empty() => false,
        None => covered(name.strip_suffix(pattern), |rest| rest.ends_with('.')),
    }
}

/// Whether any of `patterns` covers `name`.
pub(crate) fn any_matches(patterns: &[String], name: &str) -> bool {
    patterns.iter().any(|pattern| matches(pattern, name))
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn patterns_match_whole_segments_only() {
        let cases = [
            (".", "a.b.C", true),
            (".a", "a.b.C", true),
            (".a.b", "a.b.C", true),
            (".a.b.C", "a.b.C", true),
            (".a.b.C.D", "a.b.C", false),
            (".a.b", "a.bb.C", false),
            (".b", "a.b.C", false),
            ("C", "a.b.C", true),
            ("b.C", "a.b.C", true),
            ("a.b.C", "a.b.C", true),
            ("x.a.b.C", "a.b.C", false),
            ("C", "a.b.CC", false),
            ("C", "a.b.AC", false),
            ("b", "a.b.C", false),
            ("", "a.b.C", false),
            ("", "", false),
            (".", "", true),
        ];
        for (pattern, name, expected) in cases {
            assert_eq!(matches(pattern, name), expected, "{pattern:?} on {name:?}");
        }
    }
}
