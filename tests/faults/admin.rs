//! The admin listener of a gateway that is a Pitot: records of requests, and its other pages.
//!
//! Apart so that the corpus runs without it against any other gateway. Must not know: cases.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde_json::Value;

use super::caller::{Caller, Errand, Reply};
use super::case::{Leaves, Pace, Protocol, Request, Sending, Version};

/// Longest wait for the record of a request that has ended.
const RECORD_MAX: Duration = Duration::from_secs(3);

/// Fetches a page.
pub fn page(admin: SocketAddr, path: &str) -> std::io::Result<Reply> {
    let request = Request {
        method: "GET",
        path: path.to_owned(),
        lines: "connection: close\r\n".to_owned(),
        body: Bytes::new(),
        sending: Sending::AtOnce,
        version: Version::Http11,
        asks: false,
    };
    let errand = Errand {
        request: &request,
        body: Bytes::new(),
        id: "page",
        model: "",
        pace: &Pace::AsItComes,
        leaves: &Leaves::Never,
    };
    Caller::new(admin, Protocol::Http11)?.call(&errand)
}

/// The finished record of a request, by the id that the caller gave it.
pub fn record(admin: SocketAddr, id: &str) -> Result<Value, String> {
    let until = Instant::now() + RECORD_MAX;
    loop {
        let reply = page(admin, &format!("/requests/{id}")).map_err(|error| error.to_string())?;
        if reply.status == Some(200) {
            return serde_json::from_slice(&reply.body).map_err(|error| error.to_string());
        }
        if Instant::now() > until {
            return Err(format!("no record within {RECORD_MAX:?}"));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}
