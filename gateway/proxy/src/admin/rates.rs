//! `/rates`: over the rolling windows, or over a stretch that is asked for.
//!
//! Apart for its question's own small language: from, to and by. Must not know: how rates are made.

use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::Response;
use pitot_measure::rates::By;
use serde::Deserialize;
use serde_json::json;
use std::sync::Arc;

use super::{error, json_of};
use crate::app::App;
use crate::clock::monotonic_ns;

/// The stretch that is meant where only its end is said.
const STRETCH_SECONDS: f64 = 300.0;

/// What may be asked. Times are seconds since 1970.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Asked {
    from: Option<f64>,
    to: Option<f64>,
    by: Option<Group>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Group {
    Model,
    Upstream,
    KeyAlias,
}

/// Answers with every rolling window, or with the stretch from `from` to `to`.
pub async fn rates(
    State(app): State<Arc<App>>,
    asked: Result<Query<Asked>, axum::extract::rejection::QueryRejection>,
) -> Response {
    let Query(asked) = match asked {
        Ok(asked) => asked,
        Err(why) => {
            let takes = "/rates takes from and to (seconds since 1970) and by (model, upstream or key_alias)";
            return error(StatusCode::BAD_REQUEST, &format!("{takes}: {}", why.body_text()));
        }
    };
    let now_ns = monotonic_ns();
    let anchor = app.emitter.anchor();
    if asked.from.is_none() && asked.to.is_none() && asked.by.is_none() {
        return json_of(&app.emitter.live.rates(now_ns));
    }
    let to = asked.to.unwrap_or(anchor.unix_ms(now_ns) as f64 / 1e3);
    let from = asked.from.unwrap_or(to - STRETCH_SECONDS);
    if !(from.is_finite() && to.is_finite() && from <= to) {
        return error(StatusCode::BAD_REQUEST, "from must not be later than to");
    }
    let (from_ns, to_ns) = (anchor.monotonic_ns_of(from), anchor.monotonic_ns_of(to));
    let windows = &app.emitter.live;
    let range = windows.between(from_ns, to_ns, now_ns);
    let groups = asked.by.map(|by| {
        let by = match by {
            Group::Model => By::Model,
            Group::Upstream => By::Upstream,
            Group::KeyAlias => By::KeyAlias,
        };
        windows.grouped(from_ns, to_ns, now_ns, by)
    });
    json_of(&json!({
        "from_unix_ms": anchor.unix_ms(range.from_ns),
        "to_unix_ms": anchor.unix_ms(range.to_ns),
        "range": range,
        "groups": groups,
    }))
}
