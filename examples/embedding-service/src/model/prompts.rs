//! Texts that a model wants before the texts that it embeds.
//!
//! Owns the model's prompts by name, and which of them holds when a request names none.

use std::collections::BTreeMap;
use std::fmt;

use crate::error::EmbedError;

/// What is put before a text whose request names no prompt.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum PromptChoice {
    /// Nothing.
    #[default]
    None,
    /// The model's prompt of this name.
    Named(String),
    /// This text.
    Text(String),
}

/// A model's prompts.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Prompts {
    named: BTreeMap<String, String>,
    default: Option<String>,
}

/// A prompt that the model does not have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PromptError {
    name: String,
    known: Vec<String>,
}

impl fmt::Display for PromptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, known } = self;
        match known.len() {
            0 => write!(
                f,
                "the prompt `{name}` was asked for, but the model has no prompts: leave the name out"
            ),
            _ => write!(f, "the model has no prompt `{name}`; it has {}", known.join(", ")),
        }
    }
}

impl std::error::Error for PromptError {}

impl Prompts {
    /// Prompts by name, and the name of that which holds when none is asked for.
    ///
    /// # Errors
    /// There is no prompt of that name.
    pub fn new(named: BTreeMap<String, String>, default: Option<&str>) -> Result<Self, PromptError> {
        let prompts = Self { named, default: None };
        let default = default.map(|name| prompts.named(name).map(str::to_owned)).transpose()?;
        Ok(Self { default, ..prompts })
    }

    /// The same prompts with another default, unless `choice` is none.
    ///
    /// # Errors
    /// There is no prompt of that name.
    pub fn with_default(self, choice: PromptChoice) -> Result<Self, PromptError> {
        let default = match choice {
            PromptChoice::None => self.default,
            PromptChoice::Named(name) => Some(self.named(&name)?.to_owned()),
            PromptChoice::Text(text) => Some(text),
        };
        Ok(Self { named: self.named, default })
    }

    fn named(&self, name: &str) -> Result<&str, PromptError> {
        let known = || self.named.keys().cloned().collect();
        self.named
            .get(name)
            .map(String::as_str)
            .ok_or_else(|| PromptError { name: name.to_owned(), known: known() })
    }

    /// What is put before a text of a request that names `name`, or none.
    pub(crate) fn choose(&self, name: Option<&str>) -> Result<&str, EmbedError> {
        match name {
            None => Ok(self.default.as_deref().unwrap_or_default()),
            Some(name) => self.named(name).map_err(|error| EmbedError::Validation(error.to_string())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompts() -> Prompts {
        let named = [("query", "query: "), ("passage", "passage: ")];
        let named = named.map(|(name, text)| (name.to_owned(), text.to_owned()));
        Prompts::new(BTreeMap::from(named), Some("query")).expect("it is there")
    }

    #[test]
    fn a_request_names_a_prompt_or_gets_the_default_one() {
        assert_eq!(prompts().choose(None), Ok("query: "));
        assert_eq!(prompts().choose(Some("passage")), Ok("passage: "));
        assert_eq!(Prompts::default().choose(None), Ok(""));
        let changed = |choice| prompts().with_default(choice).expect("it is there");
        assert_eq!(changed(PromptChoice::None).choose(None), Ok("query: "));
        assert_eq!(changed(PromptChoice::Named("passage".into())).choose(None), Ok("passage: "));
        assert_eq!(changed(PromptChoice::Text("> ".into())).choose(None), Ok("> "));
    }

    #[test]
    fn a_prompt_that_is_not_there_is_refused_and_those_that_are_told() {
        let error = prompts().choose(Some("other")).expect_err("refused").to_string();
        assert!(error.contains("`other`") && error.contains("passage, query"), "{error}");
        let error = Prompts::default().choose(Some("other")).expect_err("refused").to_string();
        assert!(error.contains("no prompts"), "{error}");
        assert!(prompts().with_default(PromptChoice::Named("other".into())).is_err());
    }
}
