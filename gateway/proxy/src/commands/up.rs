//! `pitot up`: engine and gateway together.
//!
//! Apart from `serve` because it owns an engine process, waits until both are ready and says where to ask. With
//! `--once` it asks one question itself and stops. Must not know: how requests are forwarded.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use pitot_config::Sources;
use pitot_config::gateway::{self, Settings, UpstreamAddress};

use crate::app::App;
use crate::arguments::Up;
use crate::commands::{once, serve};
use crate::ready::{self, Readiness};
use crate::shutdown::Shutdown;
use crate::supervise::{Pace, Supervisor};

/// How often readiness is looked at.
const LOOK: Duration = Duration::from_millis(50);

/// Runs engine and gateway until told to stop, or asks one question.
pub fn run(sources: &Sources, up: &Up) -> anyhow::Result<ExitCode> {
    let mut settings = gateway::resolve(sources)?.settings;
    serve::start_logging(settings.log);
    let folder = up.once.is_some().then(|| private_folder(&mut settings)).transpose()?;
    let arguments = engine_arguments(&settings, up)?;
    let stop_timeout = settings.limits.drain_timeout;
    let engine = settings.engine.clone();
    let ready_timeout = engine.ready_timeout;
    let app = App::new(settings)?;
    let addresses = serve::open(&app)?;
    let supervisor = Supervisor::start(&engine, arguments, stop_timeout)?;
    let shutdown = Shutdown::default();
    let question = up.once.clone();
    let asking = {
        let (app, shutdown) = (Arc::clone(&app), shutdown.clone());
        let down = supervisor.watch();
        std::thread::Builder::new().name("up".into()).spawn(move || {
            let done = wait_until_ready(&app, ready_timeout, &down).and_then(|()| match &question {
                Some(question) => once::ask(&app, addresses, question),
                None => {
                    announce(&app, addresses);
                    Ok(ExitCode::SUCCESS)
                }
            });
            if done.is_err() || question.is_some() {
                shutdown.ask();
            }
            done
        })?
    };
    let served = serve::serve(&app, addresses, &shutdown);
    supervisor.stop(served.as_ref().copied().unwrap_or(Pace::Patient));
    if let Some(folder) = folder {
        // What is left there are sockets of processes that have ended.
        let _ = std::fs::remove_dir_all(folder);
    }
    served?;
    if asking.is_finished() || up.once.is_some() {
        return asking.join().unwrap_or_else(|_| bail!("the command ended unexpectedly"));
    }
    Ok(ExitCode::SUCCESS)
}

/// Gives a single question ports and sockets of its own, so that it disturbs nothing that runs.
fn private_folder(settings: &mut Settings) -> anyhow::Result<PathBuf> {
    let folder = std::env::temp_dir().join(format!("pitot-once-{}", std::process::id()));
    std::fs::create_dir(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    settings.upstream.address = UpstreamAddress::Unix(folder.join("engine.sock"));
    settings.upstream.control_socket = Some(folder.join("control.sock"));
    settings.listen.address.set_port(0);
    settings.listen.admin_address.set_port(0);
    Ok(folder)
}

fn engine_arguments(settings: &Settings, up: &Up) -> anyhow::Result<Vec<String>> {
    let UpstreamAddress::Unix(socket) = &settings.upstream.address else {
        bail!(
            "`pitot up` starts its own engine on a Unix socket, but upstream.address is {}; use `pitot serve` in \
             front of a server that runs already",
            settings.upstream.address
        );
    };
    let Some(control) = &settings.upstream.control_socket else {
        bail!("`pitot up` needs the control channel, but upstream.control_socket is \"none\"");
    };
    let mut arguments: Vec<String> = vec!["serve".into(), "--stop-with-stdin".into()];
    let mut value = |flag: &str, value: String| arguments.extend([flag.to_owned(), value]);
    value("--socket", socket.display().to_string());
    value("--control-socket", control.display().to_string());
    value("--log-level", settings.log.level.name().to_owned());
    if let Some(config) = &settings.engine.config {
        value("--config", config.display().to_string());
    }
    if let Some(model) = &up.model {
        value("--model", model.clone());
    }
    for name in &up.served_model_names {
        value("--served-model-name", name.clone());
    }
    for assignment in &up.engine_set {
        value("--set", assignment.clone());
    }
    Ok(arguments)
}

fn wait_until_ready(
    app: &Arc<App>,
    timeout: Duration,
    engine: &crate::supervise::Watch,
) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let deadline = Instant::now() + timeout;
    loop {
        let ours = app.link.state().is_some_and(|state| engine.is_ours(state.process_id));
        let why = match runtime.block_on(ready::look(app)) {
            Readiness::Ready if ours => return Ok(()),
            Readiness::Ready => "another engine answers at the same socket".to_owned(),
            Readiness::NotReady(why) => why,
        };
        if engine.is_down() {
            bail!("the engine ended before it was ready; what it said is above");
        }
        if app.is_draining() {
            bail!("stopped before the engine was ready");
        }
        if Instant::now() > deadline {
            bail!("the engine was not ready within {} s: {why} (engine.ready_timeout_ms)", timeout.as_secs());
        }
        std::thread::sleep(LOOK);
    }
}

fn announce(app: &App, addresses: serve::Addresses) {
    let model = app.link.state().and_then(|engine| engine.models.first().cloned()).unwrap_or_default();
    let serve::Addresses { applications, admin } = addresses;
    let banner = format!(
        "\nPitot is ready.\n\n  \
         endpoint  http://{applications}/v1   (the base_url of an OpenAI client)\n  \
         admin     http://{admin}      (/metrics /rates /requests /requests/{{id}} /engine /readyz)\n\n\
         Try it (-i shows the headers; x-request-id is the id for /requests/{{id}}):\n\n  \
         curl -iN http://{applications}/v1/chat/completions -H 'content-type: application/json' -d '{{\n    \
         \"model\": \"{model}\", \"temperature\": 0, \"max_tokens\": 64,\n    \
         \"stream\": true, \"stream_options\": {{\"include_usage\": true}},\n    \
         \"messages\": [{{\"role\": \"user\", \"content\": \"What is the capital of France?\"}}]}}'\n\n\
         Ctrl-C finishes what runs and stops both; a second one stops at once.\n\n"
    );
    // Nobody may be reading; serving goes on.
    let _ = std::io::stdout().write_all(banner.as_bytes());
}
