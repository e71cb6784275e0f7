//! Owns what a build script is told when generation fails.
//!
//! Invariant: `Debug` prints what `Display` prints, since a build script shows an error through
//! `unwrap` or by returning it from `main`; a person must be able to act on either.
//!
//! Never prints a protobuf import name where the path of the file on disk is known.

use std::{error, fmt, io, path::PathBuf};

use miette::{Diagnostic, SourceCode};

/// Why code could not be generated.
#[non_exhaustive]
pub enum Error {
    /// `.proto` files are missing or broken. Never empty.
    Proto(Vec<Problem>),
    /// A descriptor set cannot be used.
    Descriptors {
        /// What is wrong, and what to do about it.
        message: String,
    },
    /// An attribute given to an option is not a Rust attribute.
    Attribute {
        /// The path pattern the attribute was given for.
        path: String,
        /// The text of the attribute.
        attribute: String,
        /// What the Rust parser said.
        source: Box<dyn error::Error + Send + Sync>,
    },
    /// The generator was asked for something that is not Rust, for example by an `extern_path`.
    Generate {
        /// The protobuf package, empty if it has none.
        package: String,
        /// What went wrong.
        source: Box<dyn error::Error + Send + Sync>,
    },
    /// A file could not be read or written.
    Io {
        /// What was being done: `read` or `write`.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Neither `out_dir` nor the environment variable `OUT_DIR` is set.
    NoOutDir,
}

/// One thing that is wrong with a `.proto` file.
#[non_exhaustive]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The file, as a path from where the build script runs; `None` if no file is to blame.
    pub file: Option<PathBuf>,
    /// Line and column, both from 1, the column in bytes; `None` if the whole file is meant.
    pub position: Option<(usize, usize)>,
    /// What is wrong.
    pub message: String,
    /// What to do about it, if that is known.
    pub help: Option<String>,
    /// The line at `position`.
    pub line: Option<String>,
}

impl Problem {
    /// A problem that is not at one place of a file.
    pub(crate) fn without_position(file: Option<PathBuf>, message: String) -> Self {
        Self { file, position: None, message, help: None, line: None }
    }

    fn from_diagnostic(
        diagnostic: &dyn Diagnostic,
        source_code: Option<&dyn SourceCode>,
        file: Option<PathBuf>,
    ) -> Self {
        let mut problem = Self::without_position(file, diagnostic.to_string());
        problem.help = diagnostic.help().map(|help| help.to_string());
        // Of several labels, the last is the one to change: the second of two definitions.
        let label = diagnostic.labels().and_then(Iterator::last);
        if let (Some(label), Some(source_code)) = (label, source_code)
            && let Ok(contents) = source_code.read_span(label.inner(), 0, 0)
        {
            problem.position = Some((contents.line() + 1, contents.column() + 1));
            problem.line = whole_line(source_code, label.offset(), contents.column());
        }
        if problem.position.is_some() && problem.help.is_none() {
            problem.help = editions_help(problem.line.as_deref());
        }
        problem
    }
}

/// The line of source that `offset`, which is in column `column`, belongs to.
fn whole_line(source_code: &dyn SourceCode, offset: usize, column: usize) -> Option<String> {
    let start = offset.checked_sub(column)?;
    let contents = source_code.read_span(&start.into(), 0, 1).ok()?;
    let text = std::str::from_utf8(contents.data()).ok()?;
    Some(text.lines().next()?.to_owned())
}

fn editions_help(line: Option<&str>) -> Option<String> {
    let is_edition = line?.trim_start().starts_with("edition");
    is_edition.then(|| {
        "protobuf editions are not read from source: run \
         `protoc --include_imports --include_source_info -o FILE ...` and give FILE to \
         `file_descriptor_set`"
            .to_owned()
    })
}

/// Everything that protox has to say, with `locate` turning import names into paths.
pub(crate) fn from_protox(error: &protox::Error, locate: impl Fn(&str) -> PathBuf) -> Error {
    let file = error.file().map(locate);
    let source_code = error.source_code();
    let mut problems = vec![Problem::from_diagnostic(error, source_code, file.clone())];
    for related in error.related().into_iter().flatten() {
        let source_code = related.source_code().or(source_code);
        problems.push(Problem::from_diagnostic(related, source_code, file.clone()));
    }
    Error::Proto(problems)
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(file) = &self.file {
            write!(f, "{}:", file.display())?;
            if let Some((line, column)) = self.position {
                write!(f, "{line}:{column}:")?;
            }
            f.write_str(" ")?;
        }
        f.write_str(&self.message)?;
        if let (Some(line), Some((_, column))) = (&self.line, self.position) {
            // Tabs stay tabs, so that the mark lands below what it marks.
            let indent: String = line
                .char_indices()
                .take_while(|(at, _)| at + 1 < column)
                .map(|(_, c)| if c == '\t' { '\t' } else { ' ' })
                .collect();
            write!(f, "\n  | {line}\n  | {indent}^")?;
        }
        if let Some(help) = &self.help {
            write!(f, "\n  = help: {help}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Proto(problems) => {
                for (index, problem) in problems.iter().enumerate() {
                    let separator = if index == 0 { "" } else { "\n" };
                    write!(f, "{separator}{problem}")?;
                }
                Ok(())
            }
            Error::Descriptors { message } => f.write_str(message),
            Error::Attribute { path, attribute, source } => {
                write!(f, "`{attribute}`, given for `{path}`, is not an attribute: {source}")
            }
            Error::Generate { package, source } => {
                write!(f, "cannot generate code for package `{package}`: {source}")
            }
            Error::Io { action, path, source } => write!(f, "cannot {action} {}: {source}", path.display()),
            Error::NoOutDir => {
                f.write_str("OUT_DIR is not set: generate from a build script, or say where with `out_dir`")
            }
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl error::Error for Error {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            Error::Attribute { source, .. } | Error::Generate { source, .. } => Some(source.as_ref()),
            Error::Io { source, .. } => Some(source),
            Error::Proto(_) | Error::Descriptors { .. } | Error::NoOutDir => None,
        }
    }
}

/// For build scripts whose `main` returns `std::io::Result`.
impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        let kind = match &error {
            Error::Io { source, .. } => source.kind(),
            _ => io::ErrorKind::InvalidInput,
        };
        io::Error::new(kind, error)
    }
}
