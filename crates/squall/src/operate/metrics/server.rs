//! What the server of metrics answers: the metrics, whether the member lives and is ready, and its trace.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use prometheus_client::registry::Registry;
use squall_transports::bootstrap::Address;
use squall_transports::http::{HttpAnswer, HttpServer, read_request};

use super::board::FiguresBoard;
use super::exposition;
use crate::config::MetricsConfig;

/// Listens, and answers from what is on the board.
pub(crate) fn serve_metrics(config: &MetricsConfig, board: Arc<FiguresBoard>) -> io::Result<HttpServer> {
    let Address::Tcp { host, port } = &config.listen else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no TCP address"));
    };
    let registry = exposition::registry(Arc::clone(&board));
    HttpServer::open("squall metrics", (host.as_str(), *port), CONNECTIONS_MAX, move |request| {
        answer(&request.path, &board, &registry).into()
    })
}

fn answer(path: &str, board: &FiguresBoard, registry: &Registry) -> HttpAnswer {
    if let ("/healthz" | "/readyz", Some(failure)) = (path, board.failure()) {
        return HttpAnswer::line(503, &failure.to_string());
    }
    match path {
        "/metrics" => {
            HttpAnswer { status: 200, kind: exposition::CONTENT_TYPE, body: exposition::text(registry) }
        }
        // What the member has noticed lately.
        "/trace" => HttpAnswer { status: 200, kind: "application/json", body: board.trace() },
        // Whether the process and its polling thread live.
        "/healthz" if board.lives(HEALTH_PATIENCE) => HttpAnswer::line(200, "this member lives"),
        "/healthz" => {
            HttpAnswer::line(503, &format!("the polling thread has not run for {HEALTH_PATIENCE:?}"))
        }
        // Whether messages flow, and the member's data is here.
        "/readyz" => {
            let figures = board.read();
            match (figures.written, figures.ready) {
                (None, _) => HttpAnswer::line(503, "this member has not joined its group yet"),
                (Some(_), true) => match board.missing(&figures) {
                    missing if missing.is_empty() => HttpAnswer::line(200, "messages flow"),
                    missing => HttpAnswer::line(503, &format!("messages flow, but {missing}")),
                },
                (Some(_), false) if figures.lacks_majority => {
                    HttpAnswer::line(503, "this member hears no majority, and waits for one with its state")
                }
                (Some(_), false) => HttpAnswer::line(503, "the view is changing, so no message flows"),
            }
        }
        _ => HttpAnswer::line(404, "there are /metrics, /healthz, /readyz and /trace"),
    }
}

/// Reads bytes as a request, for fuzzing: returns what is answered, or `None` if more is to come. Fuzzed as `metrics`.
#[must_use]
pub fn read_foreign(bytes: &[u8]) -> Option<String> {
    read_request(bytes).transpose().map(|read| format!("{read:?}"))
}

/// Scrapers ask a few times a minute, one after the other.
const CONNECTIONS_MAX: usize = 8;
/// How long the polling thread may take to give a sign of life: a busy machine keeps it waiting.
const HEALTH_PATIENCE: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::slot::SubgroupSlot;

    /// A member in whose view messages flow is ready when the states of its objects are there, also if no figures are written meanwhile.
    #[test]
    fn a_member_whose_object_has_no_state_is_not_ready() {
        let slot = Arc::<SubgroupSlot>::default();
        let board = FiguresBoard::new(vec!["stock".into()], vec![Arc::clone(&slot)], Arc::default());
        let registry = Registry::default();
        let ready = || {
            let HttpAnswer { status, body, .. } = answer("/readyz", &board, &registry);
            (status, body)
        };
        let mut figures = board.try_write().expect("no thread reads");
        (figures.written, figures.ready) = (Some(Instant::now()), true);
        drop(figures);
        assert_eq!(ready(), (200, "messages flow\n".into()));
        slot.use_for_object();
        assert_eq!(ready().0, 200, "it is not in the subgroup");
        slot.enter(1);
        assert_eq!(ready(), (503, "messages flow, but the state of `stock` is not here yet\n".into()));
        slot.note_state(true);
        assert_eq!(ready().0, 200);
    }
}
