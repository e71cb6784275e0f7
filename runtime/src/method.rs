//! What is known of a method before it is called.
//!
//! Owns [`MethodDescriptor`], which generated code builds at compile time.

/// How many messages each side of a call sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MethodKind {
    /// One and one.
    Unary,
    /// Many requests, one reply.
    ClientStreaming,
    /// One request, many replies.
    ServerStreaming,
    /// Many and many.
    Streaming,
}

/// What `idempotency_level` in the `.proto` says of a method.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Idempotency {
    /// Nothing.
    Unknown,
    /// It may be called again, since it changes nothing.
    NoSideEffects,
    /// It may be called again, since it changes nothing the second time.
    Idempotent,
}

/// A method of a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MethodDescriptor {
    path: &'static str,
    kind: MethodKind,
    idempotency: Idempotency,
}

impl MethodDescriptor {
    /// The method at `path`, which is `/package.Service/Method`.
    pub const fn new(path: &'static str, kind: MethodKind) -> Self {
        Self { path, kind, idempotency: Idempotency::Unknown }
    }

    /// The same method with its idempotency known.
    #[must_use]
    pub const fn with_idempotency(mut self, idempotency: Idempotency) -> Self {
        self.idempotency = idempotency;
        self
    }

    /// `/package.Service/Method`.
    pub const fn path(&self) -> &'static str {
        self.path
    }

    /// How many messages each side sends.
    pub const fn kind(&self) -> MethodKind {
        self.kind
    }

    /// Whether it may be called again.
    pub const fn idempotency(&self) -> Idempotency {
        self.idempotency
    }

    /// Where `path` is among `methods`; their number when it is not.
    pub fn position(methods: &[Self], path: &str) -> usize {
        methods.iter().position(|method| method.path == path).unwrap_or(methods.len())
    }
}
