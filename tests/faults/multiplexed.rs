//! Several requests at once on one HTTP/2 connection: they do not wait for each other and do not end each other.
//!
//! Apart from the cases, each of which has its connection to itself. Must not know: cases.

use std::time::Duration;

use bytes::Bytes;
use h2::client::{self, SendRequest};
use h2::{Reason, RecvStream};
use pitot_tests::faults::admin;
use pitot_tests::faults::dialect::{Dialect, Finish, Mode, Usage, answer};
use pitot_tests::faults::gateway::{Gateway, Profile};
use pitot_tests::faults::player::Player;
use pitot_tests::faults::script::Play;

const COUNTS: Usage = Usage { input: 7, output: 5, reasoning: None, cached: None };
/// Longest wait for what must not wait.
const SOON: Duration = Duration::from_secs(3);

async fn ask(requests: &SendRequest<Bytes>, model: &str) -> (h2::SendStream<Bytes>, RecvStream) {
    let body = Dialect::Chat.request(Mode::Stream, "").replace("@MODEL@", model);
    let request = http::Request::post("http://gateway/v1/chat/completions")
        .header("x-request-id", model)
        .header("content-type", "application/json")
        .body(())
        .unwrap();
    let mut requests = requests.clone().ready().await.unwrap();
    let (response, mut sending) = requests.send_request(request, false).unwrap();
    sending.send_data(Bytes::from(body), true).unwrap();
    let response = tokio::time::timeout(SOON, response).await.expect("a head soon").unwrap();
    assert_eq!(response.status(), 200, "{model}");
    (sending, response.into_body())
}

async fn rest(body: &mut RecvStream) -> String {
    let mut text = Vec::new();
    while let Some(data) = body.data().await {
        let data = data.unwrap();
        text.extend_from_slice(&data);
        body.flow_control().release_capacity(data.len()).unwrap();
    }
    String::from_utf8_lossy(&text).into_owned()
}

#[test]
fn requests_of_one_connection_do_not_disturb_each_other() {
    let player = Player::listen("127.0.0.1:0").unwrap();
    let upstream = format!("http://{}", player.address);
    let gateway = Gateway::start(&upstream, Profile::Default, &[]).unwrap();
    let chat = Dialect::Chat;
    let large = Bytes::from(chat.text(&"long ".repeat(13_000)));
    let stalled = (0..100).fold(Play::sse(), |play, _| play.send_large(large.clone()));
    let stalled = player.expect("stalled", vec![stalled.await_close()]);
    let endless = player.expect("endless", vec![Play::sse().text(chat, "x").await_close()]);
    let slow = Play::sse().text(chat, "one").pause(300).text(chat, "two");
    let _slow = player.expect("slow", vec![slow.close_with(chat, Finish::Stop, &COUNTS)]);
    let _quick = player.expect("quick", vec![answer(chat, Mode::Stream, &COUNTS)]);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        let stream = tokio::net::TcpStream::connect(gateway.address).await.unwrap();
        let (requests, connection) = client::Builder::new()
            .initial_window_size(64 * 1024)
            .initial_connection_window_size(16 * 1024 * 1024)
            .handshake::<_, Bytes>(stream)
            .await
            .unwrap();
        let driver = tokio::spawn(async move { connection.await.map_err(|error| error.to_string()) });
        // This one is never read, and holds nobody up.
        let (mut never_read, _unread) = ask(&requests, "stalled").await;
        let (mut left, _left) = ask(&requests, "endless").await;
        let (_, mut slow) = ask(&requests, "slow").await;
        let (_, mut quick) = ask(&requests, "quick").await;
        let quick =
            tokio::time::timeout(SOON, rest(&mut quick)).await.expect("not held up by the stalled one");
        assert!(quick.contains("[DONE]"), "{quick}");
        left.send_reset(Reason::CANCEL);
        let slow = tokio::time::timeout(SOON, rest(&mut slow)).await.expect("not ended by the one that left");
        assert!(slow.contains("two") && slow.contains("[DONE]"), "{slow}");
        never_read.send_reset(Reason::CANCEL);
        tokio::time::sleep(Duration::from_millis(100)).await;
        driver.abort();
    });
    for model in ["slow", "quick"] {
        assert_eq!(admin::record(gateway.admin, model).unwrap()["outcome"], "success", "{model}");
    }
    for (model, run) in [("stalled", stalled), ("endless", endless)] {
        assert_eq!(admin::record(gateway.admin, model).unwrap()["outcome"], "cancelled", "{model}");
        let closed = run.arrivals().first().and_then(|arrival| arrival.closed);
        assert!(closed.is_some(), "{model}: the upstream goes on for nobody");
    }
}
