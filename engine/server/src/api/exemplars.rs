//! `query_exemplars`.
use std::sync::Arc;

use axum::extract::State;
use metricsstore_model::Matcher;
use metricsstore_storage::SeriesExemplars;

use super::result::push_labels;
use super::{Form, ready_store};
use crate::app::App;
use crate::http::params::{MAX_TIME_MS, MIN_TIME_MS, Params};
use crate::http::reply::{ApiError, Envelope, ErrorType, Reply};
use crate::number::{push_float, push_timestamp};

/// `GET` and `POST /api/v1/query_exemplars`: exemplars of the series that any selector of the query selects.
pub async fn query_exemplars(State(app): State<Arc<App>>, Form(params): Form) -> Reply {
    find(&app, &params).map_or_else(ApiError::into_reply, |found| {
        let mut envelope = Envelope::start();
        push_exemplars(&mut envelope.out, &found);
        envelope.finish(&[], &[])
    })
}

fn find(app: &App, params: &Params) -> Result<Vec<SeriesExemplars>, ApiError> {
    let start_ms = params.time_or("start", MIN_TIME_MS)?;
    let end_ms = params.time_or("end", MAX_TIME_MS)?;
    if end_ms < start_ms {
        return Err(ApiError::new(ErrorType::BadData, "end timestamp must not be before start timestamp"));
    }
    let query = app.engine.read().parse(params.get("query"))?;
    let any_of: Vec<Vec<Matcher>> = query.selectors().into_iter().map(<[Matcher]>::to_vec).collect();
    Ok(ready_store(app)?.exemplars(&any_of, start_ms, end_ms))
}

fn push_exemplars(out: &mut Vec<u8>, found: &[SeriesExemplars]) {
    out.push(b'[');
    for (index, series) in found.iter().enumerate() {
        out.extend_from_slice(if index > 0 { b",{\"seriesLabels\":" } else { b"{\"seriesLabels\":" });
        push_labels(out, series.series.iter());
        out.extend_from_slice(b",\"exemplars\":[");
        for (index, exemplar) in series.exemplars.iter().enumerate() {
            out.extend_from_slice(if index > 0 { b",{\"labels\":" } else { b"{\"labels\":" });
            push_labels(out, exemplar.labels.iter());
            out.extend_from_slice(b",\"value\":\"");
            push_float(out, exemplar.value);
            out.extend_from_slice(b"\",\"timestamp\":");
            push_timestamp(out, exemplar.timestamp_ms);
            out.push(b'}');
        }
        out.extend_from_slice(b"]}");
    }
    out.push(b']');
}

#[cfg(test)]
mod tests {
    use metricsstore_model::LabelBuf;
    use metricsstore_storage::{SeriesExemplars, StoredExemplar};

    use super::push_exemplars;

    #[test]
    fn exemplars_are_written_as_prometheus_does() {
        let exemplar = StoredExemplar {
            labels: LabelBuf::from_pairs([("trace_id", "EpTxMJ40fUus7aGY")]),
            timestamp_ms: 1_600_096_945_479,
            value: 6.0,
        };
        let series = SeriesExemplars {
            series: LabelBuf::from_pairs([("__name__", "test_exemplar_metric_total"), ("job", "prometheus")]),
            exemplars: vec![exemplar],
        };
        let mut out = Vec::new();
        push_exemplars(&mut out, &[series]);
        assert_eq!(
            String::from_utf8(out).unwrap(),
            r#"[{"seriesLabels":{"__name__":"test_exemplar_metric_total","job":"prometheus"},"exemplars":[{"labels":{"trace_id":"EpTxMJ40fUus7aGY"},"value":"6","timestamp":1600096945.479}]}]"#
        );
    }
}
