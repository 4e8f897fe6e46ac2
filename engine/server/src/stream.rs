//! A job's outputs as server-sent events, or gathered into one body.
//!
//! Apart from the endpoints' shapes: this knows what comes when. Dropped, it drops the job's channel, by which the
//! engine ends the job. Must not know: HTTP heads, sockets.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::Stream;
use pitot_runtime::{Channel, Finish, Output, StopCause, TokenLogprobs, Tokenizer};
use serde_json::Value;
use tokio::sync::OwnedSemaphorePermit;

use crate::engine_thread::{Event, Events};
use crate::openai::common::{Counts, Delivery, Echo, Endpoint, Prompt, Reply, Scored, Totals, frame};
use crate::openai::error::ApiError;
use crate::openai::{chat, completions};

const DONE: &str = "[DONE]";
const MARKERS: [&str; 2] = ["<think>", "</think>"];

/// An answer in the making.
pub struct Answer {
    events: Events,
    reply: Reply,
    tokenizer: Arc<Tokenizer>,
    choices: Vec<Choice>,
    totals: Totals,
    /// Held until the answer is out.
    _permit: OwnedSemaphorePermit,
}

/// One sequence.
#[derive(Default)]
struct Choice {
    /// A marker whose text is not shown yet, since a stop string may end in it.
    marker: Option<&'static str>,
    begun: bool,
    reasoning_text: String,
    text: String,
    scored: Vec<Scored>,
    /// Of the prompt, until its echo is shown.
    prompt_scored: Vec<Scored>,
    /// Whether the prompt was shown, where it is to be.
    echoed: bool,
    /// Characters of the tokens that were listed with log-probabilities.
    offset: usize,
    finish: Option<Finish>,
}

/// Something to show of one sequence.
struct Piece {
    channel: Channel,
    text: String,
    scored: Vec<Scored>,
}

impl Answer {
    pub fn new(
        events: Events,
        reply: Reply,
        tokenizer: Arc<Tokenizer>,
        permit: OwnedSemaphorePermit,
    ) -> Answer {
        let choices = (0..reply.sequences).map(|_| Choice::default()).collect();
        Answer { events, reply, tokenizer, choices, totals: Totals::default(), _permit: permit }
    }

    /// Waits for all outputs and writes the body.
    ///
    /// # Errors
    /// When the engine failed on any sequence.
    pub async fn whole(mut self) -> Result<String, ApiError> {
        while self.totals.ended() < self.choices.len() {
            let event = self.events.recv().await;
            let (index, piece, finish) = self.take(event)?;
            let choice = &mut self.choices[index];
            match piece.channel {
                Channel::Reasoning => choice.reasoning_text.push_str(&piece.text),
                Channel::Content => choice.text.push_str(&piece.text),
            }
            choice.scored.extend(piece.scored);
            choice.finish = finish;
        }
        let choices = self.choices.iter().enumerate().map(|(index, choice)| {
            let Choice { reasoning_text, text, scored, finish, .. } = choice;
            let finish = finish.as_ref().unwrap_or(&Finish::Abort);
            match self.reply.endpoint {
                Endpoint::Chat => chat::choice(index, reasoning_text, text, scored, finish),
                Endpoint::Completions => completions::choice(index, text, scored, finish),
            }
        });
        let choices: Vec<Value> = choices.collect();
        Ok(frame(&self.reply, &choices, Counts::Ended(&self.totals)))
    }

    /// The events of a stream, each when its output arrives.
    pub fn stream(self) -> impl Stream<Item = Result<Bytes, Infallible>> {
        let start = (Some(self), VecDeque::new());
        futures_util::stream::unfold(start, |(mut answer, mut ready)| async move {
            loop {
                if let Some(bytes) = ready.pop_front() {
                    return Some((Ok(bytes), (answer, ready)));
                }
                let mut going = answer.take()?;
                let event = going.events.recv().await;
                match going.chunks(event, &mut ready) {
                    // Without [DONE], which would say that all is well.
                    Err(error) => ready.push_back(sse(&error.body())),
                    Ok(()) if going.totals.ended() == going.choices.len() => {
                        if going.reply.delivery.ends_with_usage() {
                            ready.push_back(sse(&frame(&going.reply, &[], Counts::Ended(&going.totals))));
                        }
                        ready.push_back(sse(DONE));
                    }
                    Ok(()) => answer = Some(going),
                }
            }
        })
    }

    /// Adds the chunks of one output.
    fn chunks(&mut self, event: Option<Event>, ready: &mut VecDeque<Bytes>) -> Result<(), ApiError> {
        let before = self.totals.clone();
        let (index, piece, finish) = self.take(event)?;
        let endpoint = self.reply.endpoint;
        let counts = |totals| match self.reply.delivery {
            Delivery::StreamWithContinuousUsage => Counts::SoFar(totals),
            Delivery::Whole | Delivery::Stream | Delivery::StreamWithUsage => Counts::None,
        };
        let mut choices = Vec::new();
        let choice = &mut self.choices[index];
        if endpoint == Endpoint::Chat && !choice.begun {
            // It comes ahead of the first token, which is not in it yet.
            ready.push_back(sse(&frame(&self.reply, &[chat::role_chunk(index)], counts(&before))));
        }
        choice.begun = true;
        if !piece.text.is_empty() || !piece.scored.is_empty() {
            let scored = piece.scored.as_slice();
            choices.push(match endpoint {
                Endpoint::Chat => chat::text_chunk(index, piece.channel, &piece.text, scored),
                Endpoint::Completions => completions::text_chunk(index, &piece.text, scored, choice.offset),
            });
            choice.offset += scored.iter().map(|scored| scored.token.chars().count()).sum::<usize>();
        }
        if let Some(finish) = finish {
            choices.push(match endpoint {
                Endpoint::Chat => chat::finish_chunk(index, &finish),
                Endpoint::Completions => completions::finish_chunk(index, &finish),
            });
        }
        let counts = counts(&self.totals);
        ready.extend(choices.into_iter().map(|choice| sse(&frame(&self.reply, &[choice], counts))));
        Ok(())
    }

    /// Reads one output: of which sequence, what to show, and how it ended.
    fn take(&mut self, event: Option<Event>) -> Result<(usize, Piece, Option<Finish>), ApiError> {
        let Some(Event { index, output }) = event else {
            return Err(ApiError::internal("the engine has stopped"));
        };
        match output {
            Output::Token { token, text, channel, logprobs, .. } => {
                self.totals.count();
                let scored = logprobs.map(|logprobs| Scored::of(&self.tokenizer, token, &logprobs));
                let (channel, text) = self.shown(index, text, channel);
                let marker =
                    MARKERS.into_iter().find(|marker| self.tokenizer.token_id(marker) == Some(token));
                self.choices[index].marker = marker;
                Ok((index, self.with_echo(index, channel, text, scored), None))
            }
            Output::Prompt { logprobs, .. } => {
                self.score_prompt(index, &logprobs);
                Ok((
                    index,
                    Piece { channel: Channel::Content, text: String::new(), scored: Vec::new() },
                    None,
                ))
            }
            Output::Finished { finish: Finish::Error(message), .. } => Err(ApiError::internal(message)),
            Output::Finished { text, channel, finish, stamps, usage, .. } => {
                self.totals.add(index % self.reply.choices, stamps, usage);
                if let Finish::Stop { stop: Some(StopCause::Text(_)) } = &finish {
                    self.choices[index].marker = None;
                }
                let (channel, text) = self.shown(index, text, channel);
                Ok((index, self.with_echo(index, channel, text, None), Some(finish)))
            }
        }
    }

    /// Keeps the log-probabilities of the next tokens of a prompt until it is shown.
    fn score_prompt(&mut self, index: usize, logprobs: &[TokenLogprobs]) {
        let Some(prompt) = self.prompt(index) else { return };
        let first = self.choices[index].prompt_scored.len() + 1;
        let tokens = prompt.tokens.iter().skip(first);
        let scored: Vec<Scored> = tokens
            .zip(logprobs)
            .map(|(token, logprobs)| Scored::of(&self.tokenizer, *token, logprobs))
            .collect();
        self.choices[index].prompt_scored.extend(scored);
    }

    /// The prompt of a sequence, where it is to be shown.
    fn prompt(&self, index: usize) -> Option<&Prompt> {
        match &self.reply.echo {
            Echo::Nothing => None,
            Echo::Before(prompts) | Echo::Alone(prompts) => prompts.get(index / self.reply.choices),
        }
    }

    /// What is shown of one output: the prompt before the first, where it is asked for.
    fn with_echo(&mut self, index: usize, channel: Channel, text: String, scored: Option<Scored>) -> Piece {
        let begins = !std::mem::replace(&mut self.choices[index].echoed, true);
        let mut piece = Piece { channel, text: String::new(), scored: Vec::new() };
        if begins && let Some(prompt) = self.prompt(index) {
            piece.text.push_str(&prompt.text);
            let first = prompt.tokens.first().filter(|_| scored.is_some());
            piece.scored.extend(first.map(|token| Scored::first(&self.tokenizer, *token)));
            piece.scored.append(&mut self.choices[index].prompt_scored);
        }
        match self.reply.echo {
            Echo::Nothing | Echo::Before(_) => {
                piece.text.push_str(&text);
                piece.scored.extend(scored);
            }
            Echo::Alone(_) => {}
        }
        piece
    }

    /// A chat shows reasoning apart and without its markers; completions show the text as the model wrote it.
    fn shown(&mut self, index: usize, text: String, channel: Channel) -> (Channel, String) {
        match (self.reply.endpoint, self.choices[index].marker.take()) {
            (Endpoint::Chat, _) => (channel, text),
            (Endpoint::Completions, None) => (Channel::Content, text),
            (Endpoint::Completions, Some(marker)) => (Channel::Content, format!("{marker}{text}")),
        }
    }
}

fn sse(data: &str) -> Bytes {
    Bytes::from(format!("data: {data}\n\n"))
}
