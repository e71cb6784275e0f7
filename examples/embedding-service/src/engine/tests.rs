//! The engine with a model that does what its text says.

use std::future::Future;
use std::pin::pin;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use super::*;
use crate::model::{Description, Model, Side, Tokens};

const DIMENSIONS: usize = 4;
const MAX_TOKENS: usize = 8;
const PATIENCE: Duration = Duration::from_secs(10);

/// A token for each character. `wait…` keeps its thread until it is let go, `fail…` fails, `panic…` panics.
struct Puppet {
    description: Description,
    began: Mutex<Sender<String>>,
    go: Mutex<Receiver<()>>,
    ended: Sender<()>,
}

/// What a test holds of a puppet.
struct Strings {
    began: Receiver<String>,
    go: Sender<()>,
    ended: Receiver<()>,
}

fn puppet() -> (Puppet, Strings) {
    let (began_sender, began) = channel();
    let (go, go_receiver) = channel();
    let (ended_sender, ended) = channel();
    let description = Description {
        model_id: "puppet".to_owned(),
        dtype: "float32",
        dimensions: DIMENSIONS,
        max_tokens: MAX_TOKENS,
    };
    let puppet = Puppet {
        description,
        began: Mutex::new(began_sender),
        go: Mutex::new(go_receiver),
        ended: ended_sender,
    };
    (puppet, Strings { began, go, ended })
}

impl Drop for Puppet {
    fn drop(&mut self) {
        let _ = self.ended.send(());
    }
}

impl Model for Puppet {
    fn description(&self) -> &Description {
        &self.description
    }

    fn tokenize(&self, text: &str, limit: usize, cut: Option<Side>) -> Result<Tokens, EmbedError> {
        match text {
            "tokenizer panic" => panic!("no such token"),
            "tokenizer fail" => return Err(EmbedError::Tokenizer("no such token".to_owned())),
            _ => {}
        }
        let mut ids: Vec<i32> = text.chars().map(|character| character as i32).collect();
        match cut {
            Some(Side::Right) => ids.truncate(limit),
            Some(Side::Left) => drop(ids.drain(..ids.len().saturating_sub(limit))),
            None => {}
        }
        Ok(Tokens { type_ids: vec![0; ids.len()], ids })
    }

    fn embed(&self, tokens: &Tokens) -> Result<Vec<f32>, EmbedError> {
        let characters = tokens.ids.iter().map(|&id| char::from_u32(id.unsigned_abs()).unwrap_or('?'));
        let text: String = characters.collect();
        let _ = self.began.lock().unwrap_or_else(PoisonError::into_inner).send(text.clone());
        if text.starts_with("wait") {
            let go = self.go.lock().unwrap_or_else(PoisonError::into_inner);
            go.recv_timeout(PATIENCE).expect("the test lets it go");
        }
        if text.starts_with("panic") {
            panic!("as told");
        }
        if text.starts_with("fail") {
            return Err(EmbedError::Backend("as told".to_owned()));
        }
        let first = tokens.ids.first().copied().unwrap_or_default();
        Ok(vec![first as f32, tokens.ids.len() as f32, 2.0, 1.0])
    }
}

impl Strings {
    /// The next text that the model begins with.
    fn next(&self) -> String {
        self.began.recv_timeout(PATIENCE).expect("the model begins with a text")
    }
}

/// One thread of each kind, so that the order is known.
fn settings() -> Settings {
    Settings { tokenization_workers: 1, inference_workers: 1, ..Settings::default() }
}

fn engine(settings: Settings) -> (Engine, Strings) {
    let (puppet, strings) = puppet();
    let backend = Backend::Threads(Arc::new(puppet));
    (Engine::start(backend, Prompts::default(), settings).expect("it starts"), strings)
}

fn input<const N: usize>(texts: [&str; N]) -> EmbedInput {
    EmbedInput { texts: texts.map(str::to_owned).to_vec(), raw: true, ..EmbedInput::default() }
}

async fn answered(call: impl Future<Output = Result<Embedded, EmbedError>>) -> Result<Embedded, EmbedError> {
    tokio::time::timeout(PATIENCE, call).await.expect("it is answered")
}

async fn refused(engine: &Engine, input: EmbedInput) -> String {
    answered(engine.embed(input, Admission::Refuse)).await.expect_err("refused").to_string()
}

fn poll_once<F: Future>(future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

#[tokio::test]
async fn texts_of_a_batch_are_answered_in_their_order_whatever_order_they_finish_in() {
    let (engine, strings) = engine(Settings { inference_workers: 2, ..settings() });
    let call = engine.embed(input(["wait", "b", "cc"]), Admission::Refuse);
    let control = async {
        // The second thread is through with both others before the first goes on.
        let mut began = [strings.next(), strings.next(), strings.next()];
        began.sort();
        assert_eq!(began, ["b", "cc", "wait"]);
        strings.go.send(()).expect("it waits");
    };
    let (answer, ()) = tokio::join!(answered(call), async {
        tokio::task::yield_now().await;
        control.await;
    });
    let answer = answer.expect("an answer");
    let rows: Vec<(f32, f32)> = answer.values.chunks(DIMENSIONS).map(|row| (row[0], row[1])).collect();
    assert_eq!(rows, [('w' as u32 as f32, 4.0), ('b' as u32 as f32, 1.0), ('c' as u32 as f32, 2.0)]);
    assert_eq!((answer.cost.chars, answer.cost.tokens), (7, 7));
    let cost = answer.cost;
    assert!(cost.total >= cost.tokenization + cost.queue + cost.inference, "{cost:?}");
    assert!(cost.inference > Duration::ZERO && cost.tokenization > Duration::ZERO, "{cost:?}");
}

#[tokio::test]
async fn beyond_its_limit_requests_are_refused_and_those_that_may_wait_do() {
    let (engine, strings) = engine(Settings { max_concurrent_requests: 1, ..settings() });
    let mut first = pin!(engine.embed(input(["wait"]), Admission::Refuse));
    assert!(poll_once(first.as_mut()).is_pending());
    assert_eq!(strings.next(), "wait");
    assert_eq!(refused(&engine, input(["b"])).await, "Model is overloaded");
    let mut patient = pin!(engine.embed(input(["c"]), Admission::Wait));
    assert!(poll_once(patient.as_mut()).is_pending());
    strings.go.send(()).expect("it waits");
    assert!(answered(first).await.is_ok());
    assert!(answered(patient).await.is_ok());
    // Every place is free again, also that of the one that was refused.
    assert!(answered(engine.embed(input(["d"]), Admission::Refuse)).await.is_ok());
}

#[tokio::test]
async fn what_its_caller_gave_up_is_not_computed() {
    let (engine, strings) = engine(settings());
    let mut first = pin!(engine.embed(input(["wait"]), Admission::Refuse));
    assert!(poll_once(first.as_mut()).is_pending());
    assert_eq!(strings.next(), "wait");
    {
        let mut given_up = pin!(engine.embed(input(["b", "c"]), Admission::Refuse));
        assert!(poll_once(given_up.as_mut()).is_pending());
        assert_eq!(engine.queued(), 1);
    }
    assert_eq!(engine.queued(), 0);
    let mut last = pin!(engine.embed(input(["d"]), Admission::Refuse));
    assert!(poll_once(last.as_mut()).is_pending());
    strings.go.send(()).expect("it waits");
    assert!(answered(first).await.is_ok());
    assert!(answered(last).await.is_ok());
    assert_eq!(strings.next(), "d", "neither b nor c");
}

#[tokio::test]
async fn a_batch_fails_with_its_first_failure_and_the_rest_is_not_computed() {
    let (engine, strings) = engine(settings());
    assert_eq!(refused(&engine, input(["a", "fail", "b", "c"])).await, "Backend error: as told");
    assert!(answered(engine.embed(input(["d"]), Admission::Refuse)).await.is_ok());
    assert_eq!([strings.next(), strings.next(), strings.next()], ["a", "fail", "d"]);
}

#[tokio::test]
async fn a_model_that_panics_fails_one_request_and_serves_the_next() {
    let (engine, _strings) = engine(settings());
    assert_eq!(refused(&engine, input(["panic"])).await, "Backend error: the model panicked: as told");
    assert_eq!(
        refused(&engine, input(["tokenizer panic"])).await,
        "tokenizer error the tokenizer panicked: no such token"
    );
    assert_eq!(refused(&engine, input(["tokenizer fail"])).await, "tokenizer error no such token");
    assert!(answered(engine.embed(input(["a"]), Admission::Refuse)).await.is_ok());
}

#[tokio::test]
async fn requests_that_cannot_be_answered_are_refused_with_the_words_of_tei() {
    let (engine, strings) = engine(Settings { max_client_batch_size: 2, ..settings() });
    let invalid = |text: &str| format!("Input validation error: {text}");
    let empty = invalid("`inputs` cannot be empty");
    assert_eq!(refused(&engine, input([""])).await, empty);
    assert_eq!(refused(&engine, input([])).await, empty);
    assert_eq!(refused(&engine, input(["a", ""])).await, empty);
    let too_many = invalid("batch size 3 > maximum allowed batch size 2");
    assert_eq!(refused(&engine, input(["a", "b", "c"])).await, too_many);
    let with = |dimensions| EmbedInput { dimensions: Some(dimensions), ..input(["a"]) };
    assert_eq!(refused(&engine, with(0)).await, invalid("`dimensions` should be positive"));
    let too_large = invalid("`dimensions` should be smaller than the maximum embedding dimension.");
    assert_eq!(refused(&engine, with(5)).await, too_large);
    assert_eq!(refused(&engine, with(u32::MAX)).await, too_large);
    let prompt = EmbedInput { prompt_name: Some("query".to_owned()), ..input(["a"]) };
    let error = refused(&engine, prompt).await;
    assert!(error.starts_with(&invalid("the prompt `query`")), "{error}");
    let long = invalid("`inputs` must have less than 8 tokens. Given: 9");
    assert_eq!(refused(&engine, input(["123456789"])).await, long);
    let endless = "x".repeat(MAX_TOKENS * 250 + 1);
    let error = invalid("`inputs` must have less than 2000 characters. Given: 2001");
    assert_eq!(refused(&engine, input([&endless])).await, error);
    assert!(strings.began.try_recv().is_err(), "the model ran none of them");
}

#[tokio::test]
async fn long_texts_are_cut_at_either_end() {
    let (engine, strings) = engine(settings());
    for (side, rest) in [(Side::Left, "23456789"), (Side::Right, "12345678")] {
        let input = EmbedInput { cut: Some(side), ..input(["123456789"]) };
        let answer = answered(engine.embed(input, Admission::Refuse)).await.expect("an answer");
        assert_eq!((strings.next().as_str(), answer.cost.tokens, answer.cost.chars), (rest, 8, 9));
    }
}

#[tokio::test]
async fn dimensions_are_cut_off_before_what_is_left_is_normalized() {
    let (engine, _strings) = engine(settings());
    let wanted = |raw, dimensions| EmbedInput { raw, dimensions, ..input(["\u{3}aaa"]) };
    let answer =
        async |input| answered(engine.embed(input, Admission::Refuse)).await.expect("an answer").values;
    assert_eq!(answer(wanted(true, None)).await, [3.0, 4.0, 2.0, 1.0]);
    assert_eq!(answer(wanted(true, Some(2))).await, [3.0, 4.0]);
    assert_eq!(answer(wanted(false, Some(2))).await, [0.6, 0.8]);
}

#[tokio::test]
async fn prompts_go_before_texts_and_are_not_counted_as_theirs() {
    let (puppet, strings) = puppet();
    let named = [("q".to_owned(), "?".to_owned())].into();
    let prompts = Prompts::new(named, None).expect("no default");
    let engine = Engine::start(Backend::Threads(Arc::new(puppet)), prompts, settings()).expect("it starts");
    let prompted = EmbedInput { prompt_name: Some("q".to_owned()), ..input(["ab"]) };
    let answer = answered(engine.embed(prompted, Admission::Refuse)).await.expect("an answer");
    assert_eq!((strings.next().as_str(), answer.cost.chars, answer.cost.tokens), ("?ab", 2, 3));
}

#[tokio::test]
async fn a_null_model_answers_at_once_and_under_the_same_rules() {
    let backend = Backend::AtOnce(NullModel::new(100).expect("a model"));
    let engine = Engine::start(backend, Prompts::default(), settings()).expect("it starts");
    let call = pin!(engine.embed(input(["a", "b"]), Admission::Refuse));
    let Poll::Ready(Ok(answer)) = poll_once(call) else { panic!("it does not wait") };
    assert_eq!((answer.dimensions, answer.values.len(), answer.cost.tokens), (100, 200, 0));
    assert_ne!(answer.values[..100], answer.values[100..]);
    assert_eq!(refused(&engine, input([""])).await, "Input validation error: `inputs` cannot be empty");
}

#[tokio::test]
async fn threads_end_with_their_engine() {
    let (engine, strings) = engine(settings());
    assert!(answered(engine.embed(input(["a"]), Admission::Refuse)).await.is_ok());
    assert!(strings.ended.try_recv().is_err());
    drop(engine);
    assert_eq!(strings.ended.recv_timeout(PATIENCE), Ok(()), "the last of them drops the model");
}
