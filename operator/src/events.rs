//! Events about stores: what changed, and why.
//!
//! An event's name is made from what it says and the ten minutes in which it is said: the same words are not repeated
//! within that time, and other words are never swallowed by an earlier event.

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::api::PostParams;
use kube::{Api, Client};
use metricsstore_contract::content_hash;

use crate::plan::names;

/// Whether an event is news or a warning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tone {
    /// News.
    Normal,
    /// Somebody may have to act.
    Warning,
}

/// An event's note takes 1024 bytes.
const NOTE: usize = 1000;
/// The same words are said once in so many seconds.
const WINDOW: i64 = 600;

/// Publishes an event about `regarding`. One that cannot be published is only logged.
pub async fn publish(
    client: &Client,
    regarding: ObjectReference,
    tone: Tone,
    reason: &str,
    action: &str,
    note: &str,
) {
    let event = event(regarding, tone, reason, action, note, Timestamp::now());
    let namespace = event.metadata.namespace.clone().unwrap_or_default();
    tracing::info!(namespace, store = ?event.regarding.as_ref().and_then(|store| store.name.clone()), reason, "{note}");
    let api: Api<Event> = Api::namespaced(client.clone(), &namespace);
    match api.create(&PostParams::default(), &event).await {
        Ok(_) => {}
        // Said already.
        Err(kube::Error::Api(status)) if status.code == 409 => {}
        Err(error) => tracing::info!(%error, "an event could not be published"),
    }
}

fn event(
    regarding: ObjectReference,
    tone: Tone,
    reason: &str,
    action: &str,
    note: &str,
    now: Timestamp,
) -> Event {
    let note = cut(note);
    let (name, uid) = (regarding.name.clone().unwrap_or_default(), regarding.uid.clone().unwrap_or_default());
    let said = format!("{uid}|{reason}|{note}|{}", now.as_second() / WINDOW);
    Event {
        metadata: ObjectMeta {
            name: Some(format!("{name}.{}", content_hash(said.as_bytes()))),
            namespace: regarding.namespace.clone(),
            ..ObjectMeta::default()
        },
        event_time: Some(MicroTime(now)),
        reporting_controller: Some(names::FIELD_MANAGER.into()),
        reporting_instance: Some(std::env::var("HOSTNAME").unwrap_or_else(|_| names::FIELD_MANAGER.into())),
        regarding: Some(regarding),
        reason: Some(reason.into()),
        action: Some(action.into()),
        type_: Some(
            match tone {
                Tone::Normal => "Normal",
                Tone::Warning => "Warning",
            }
            .into(),
        ),
        note: Some(note),
        ..Event::default()
    }
}

/// Whole characters within the bound.
fn cut(note: &str) -> String {
    let mut bytes = 0;
    let fits = |c: &char| {
        bytes += c.len_utf8();
        bytes <= NOTE
    };
    note.chars().take_while(fits).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(note: &str, second: i64) -> String {
        let store = ObjectReference { name: Some("main".into()), ..ObjectReference::default() };
        let now = Timestamp::from_second(second).unwrap();
        event(store, Tone::Normal, "Applied", "Apply", note, now).metadata.name.unwrap()
    }

    #[test]
    fn the_same_words_are_one_event_and_other_words_another() {
        assert_eq!(name("a", 0), name("a", 599));
        assert_ne!(name("a", 0), name("a", 600));
        assert_ne!(name("a", 0), name("b", 0));
    }

    #[test]
    fn notes_are_cut_at_whole_characters() {
        assert_eq!(cut(&"é".repeat(600)).len(), 1000);
        assert_eq!(cut("short"), "short");
    }
}
