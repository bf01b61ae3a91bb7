//! A range of samples as the query API answers it, without a copy of its text.
use std::collections::HashMap;

use serde::Deserialize;

#[derive(Deserialize)]
pub struct Response<'a> {
    #[serde(borrow)]
    pub data: Data<'a>,
}

#[derive(Deserialize)]
pub struct Data<'a> {
    #[serde(borrow)]
    pub result: Vec<Series<'a>>,
}

/// Labels (none may need an escape in JSON), and samples as seconds and text.
#[derive(Deserialize)]
pub struct Series<'a> {
    #[serde(borrow)]
    pub metric: HashMap<&'a str, &'a str>,
    #[serde(borrow)]
    pub values: Vec<(f64, &'a str)>,
}

/// The time in milliseconds of seconds in an answer.
pub fn time_ms(seconds: f64) -> i64 {
    (seconds * 1000.0).round() as i64
}
