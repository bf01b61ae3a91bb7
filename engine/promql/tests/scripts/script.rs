//! The script language: `load`, `eval`, `clear` and what they expect.
use metricsstore_model::{LabelBuf, METRIC_NAME, stale_nan};

/// A value of a series description.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Value {
    Sample(f64),
    Omitted,
    /// Native histograms are not read; their places are kept.
    Histogram,
}

#[derive(Debug)]
pub enum Command {
    Clear,
    Load { gap_ms: i64, series: Vec<(LabelBuf, Vec<Value>)>, unsupported: Option<&'static str> },
    Eval(Box<Eval>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Text {
    Any,
    Exact,
    Pattern,
}

#[derive(Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is an expectation of its own")]
pub struct Eval {
    pub line: usize,
    pub query: String,
    /// Start, end and step of a range query.
    pub range: Option<(i64, i64, i64)>,
    pub at_ms: i64,
    pub ordered: bool,
    pub fail: bool,
    pub fail_texts: Vec<(Text, String)>,
    pub warn: bool,
    pub info: bool,
    pub warn_texts: Vec<(Text, String)>,
    pub info_texts: Vec<(Text, String)>,
    pub no_warn: bool,
    pub no_info: bool,
    pub scalar: Option<f64>,
    pub string: Option<String>,
    /// First time and step of an expected range vector.
    pub range_vector: Option<(i64, i64)>,
    pub series: Vec<(LabelBuf, Vec<Value>)>,
}

pub fn duration(text: &str) -> i64 {
    let (negative, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return 0;
    }
    let mut total = 0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or_else(|| panic!("duration {text:?}"));
        let letters = rest[digits..].find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len() - digits);
        let unit = match &rest[digits..digits + letters] {
            "ms" => 1,
            "s" => 1000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            "w" => 7 * 86_400_000,
            "y" => 365 * 86_400_000,
            unit => panic!("unit {unit:?} of {text:?}"),
        };
        total += rest[..digits].parse::<i64>().unwrap() * unit;
        rest = &rest[digits + letters..];
    }
    if negative { -total } else { total }
}

fn number(text: &str) -> Option<f64> {
    let (sign, digits) = match text.as_bytes().first()? {
        b'-' => (-1.0, &text[1..]),
        b'+' => (1.0, &text[1..]),
        _ => (1.0, text),
    };
    if let Some(hex) = digits.strip_prefix("0x") {
        return i64::from_str_radix(hex, 16).ok().map(|value| sign * value as f64);
    }
    if digits.len() > 1 && digits.starts_with('0') && digits.bytes().all(|b| (b'0'..=b'7').contains(&b)) {
        return i64::from_str_radix(digits, 8).ok().map(|value| sign * value as f64);
    }
    let starts_well = digits.starts_with(|c: char| c.is_ascii_digit() || c == '.');
    let word = matches!(digits.to_ascii_lowercase().as_str(), "inf" | "nan");
    if !starts_well && !word {
        return None;
    }
    digits.parse::<f64>().ok().map(|value| sign * value)
}

/// A quoted string at the start of the text, and its length with quotes.
fn quoted(text: &str) -> (String, usize) {
    let quote = text.chars().next().unwrap();
    let mut end = 1;
    let bytes = text.as_bytes();
    while bytes[end] != quote as u8 {
        end += if bytes[end] == b'\\' && quote != '`' { 2 } else { 1 };
    }
    // The engine's own parser reads the escapes.
    let expr = metricsstore_promql::parse(&text[..=end]).unwrap();
    let metricsstore_promql::ast::ExprKind::String(value) = expr.kind else { panic!("string {text:?}") };
    (value.to_string(), end + 1)
}

/// A metric with its labels, and what follows it.
pub fn metric(line: &str) -> (LabelBuf, &str) {
    let mut labels = LabelBuf::new();
    let name_end = line.find(['{', ' ', '\t']).unwrap_or(line.len());
    if name_end > 0 {
        labels.push(METRIC_NAME, &line[..name_end]);
    }
    let mut rest = line[name_end..].trim_start();
    if !rest.starts_with('{') || rest.starts_with("{{") {
        return (labels, rest);
    }
    rest = &rest[1..];
    loop {
        rest = rest.trim_start_matches([' ', '\t', ',']);
        if let Some(after) = rest.strip_prefix('}') {
            labels.retain(|_, value| !value.is_empty());
            labels.sort();
            return (labels, after);
        }
        let name = if rest.starts_with(['"', '\'', '`']) {
            let (name, length) = quoted(rest);
            rest = rest[length..].trim_start();
            if rest.starts_with([',', '}']) {
                labels.push(METRIC_NAME, &name);
                continue;
            }
            name
        } else {
            let end = rest.find(['=', ' ']).unwrap();
            let name = rest[..end].to_owned();
            rest = rest[end..].trim_start();
            name
        };
        rest = rest.strip_prefix('=').unwrap_or_else(|| panic!("= in {line:?}")).trim_start();
        let (value, length) = quoted(rest);
        labels.push(&name, &value);
        rest = &rest[length..];
    }
}

/// Values such as `1+2x3 _ stale {{…}}x5`.
fn values(text: &str) -> Vec<Value> {
    let mut out = Vec::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        if rest.starts_with("{{") {
            let mut end = rest.find("}}").unwrap() + 2;
            if rest[end..].starts_with(['+', '-']) {
                end += rest[end..].find("}}").unwrap() + 2;
            }
            let item_end = rest[end..].find([' ', '\t']).map_or(rest.len(), |at| at + end);
            let times =
                rest[end..item_end].strip_prefix('x').map_or(0, |times| times.parse::<usize>().unwrap());
            out.extend(std::iter::repeat_n(Value::Histogram, times + 1));
            rest = rest[item_end..].trim_start();
            continue;
        }
        let end = rest.find([' ', '\t']).unwrap_or(rest.len());
        item(&rest[..end], &mut out);
        rest = rest[end..].trim_start();
    }
    out
}

fn item(text: &str, out: &mut Vec<Value>) {
    let (value, times) = match text.split_once('x') {
        Some((value, times)) => (value, times.parse::<usize>().unwrap()),
        None => (text, usize::MAX),
    };
    if value == "_" {
        let times = if times == usize::MAX { 1 } else { times };
        out.extend(std::iter::repeat_n(Value::Omitted, times));
        return;
    }
    let times = if times == usize::MAX { 0 } else { times };
    if value == "stale" {
        out.extend(std::iter::repeat_n(Value::Sample(stale_nan()), times + 1));
        return;
    }
    let split = value
        .char_indices()
        .skip(1)
        .find(|(at, c)| matches!(c, '+' | '-') && !value[..*at].ends_with(['e', 'E']))
        .map_or(value.len(), |(at, _)| at);
    let mut current = number(&value[..split]).unwrap_or_else(|| panic!("value {text:?}"));
    let delta = if split < value.len() { number(&value[split..]).unwrap() } else { 0.0 };
    for _ in 0..=times {
        out.push(Value::Sample(current));
        if split < value.len() {
            current += delta;
        }
    }
}

pub fn parse(text: &str) -> Vec<Command> {
    let lines: Vec<&str> =
        text.lines().map(str::trim).map(|line| if line.starts_with('#') { "" } else { line }).collect();
    let mut commands = Vec::new();
    let mut at = 0;
    while at < lines.len() {
        let line = lines[at];
        at += 1;
        if line.is_empty() {
            continue;
        }
        let word = line.split_whitespace().next().unwrap();
        let block_end =
            lines[at..].iter().position(|line| line.is_empty()).map_or(lines.len(), |end| at + end);
        if word == "clear" {
            commands.push(Command::Clear);
        } else if word.starts_with("load") {
            commands.push(load(line, &lines[at..block_end]));
            at = block_end;
        } else if word.starts_with("eval") {
            commands.push(Command::Eval(Box::new(eval(line, at, &lines[at..block_end]))));
            at = block_end;
        } else {
            panic!("line {at}: {line:?}");
        }
    }
    commands
}

fn load(line: &str, block: &[&str]) -> Command {
    let mut words = line.split_whitespace();
    let mut unsupported = (words.next() == Some("load_with_nhcb")).then_some("native histograms");
    let gap_ms = duration(words.next().unwrap());
    let mut series = Vec::new();
    for line in block {
        if line.split_whitespace().next().is_some_and(|word| word.ends_with("@st")) {
            unsupported = Some("start timestamps");
            continue;
        }
        let (labels, rest) = metric(line);
        series.push((labels, values(rest)));
    }
    Command::Load { gap_ms, series, unsupported }
}

fn eval(line: &str, number_of_line: usize, block: &[&str]) -> Eval {
    let mut eval = Eval { line: number_of_line, ..Eval::default() };
    let (word, rest) = line.split_once(char::is_whitespace).unwrap();
    match word {
        "eval" => {}
        "eval_fail" => eval.fail = true,
        "eval_warn" => eval.warn = true,
        "eval_info" => eval.info = true,
        "eval_ordered" => eval.ordered = true,
        word => panic!("line {number_of_line}: {word}"),
    }
    let rest = rest.trim_start();
    let next = |text: &str| -> (String, String) {
        let (word, rest) = text.trim_start().split_once(char::is_whitespace).unwrap();
        (word.to_owned(), rest.trim_start().to_owned())
    };
    if let Some(rest) = rest.strip_prefix("instant") {
        let rest = rest.trim_start();
        let (at, query) = next(rest.strip_prefix("at").unwrap_or(rest));
        eval.at_ms = duration(&at);
        eval.query = query;
    } else {
        let rest = rest.strip_prefix("range").unwrap();
        let (from, rest) = next(rest.trim_start().strip_prefix("from").unwrap());
        let (to, rest) = next(rest.strip_prefix("to").unwrap());
        let (step, query) = next(rest.strip_prefix("step").unwrap());
        eval.range = Some((duration(&from), duration(&to), duration(&step)));
        eval.query = query;
    }
    for line in block {
        expectation(&mut eval, line);
    }
    eval
}

fn expectation(eval: &mut Eval, line: &str) {
    if let Some(text) = line.strip_prefix("expected_fail_message") {
        eval.fail_texts.push((Text::Exact, text.trim().to_owned()));
    } else if let Some(text) = line.strip_prefix("expected_fail_regexp") {
        eval.fail_texts.push((Text::Pattern, text.trim().to_owned()));
    } else if let Some(times) = line.strip_prefix("expect range vector") {
        let words: Vec<&str> = times.split_whitespace().collect();
        eval.range_vector = Some((duration(words[1]), duration(words[5])));
    } else if let Some(text) = line.strip_prefix("expect string") {
        eval.string = Some(quoted(text.trim()).0);
    } else if let Some(rest) = line.strip_prefix("expect ") {
        let (word, text) = rest.split_once(' ').unwrap_or((rest, ""));
        let text = match text.trim().split_once(':') {
            Some(("msg", text)) => (Text::Exact, text.trim().to_owned()),
            Some(("regex", text)) => (Text::Pattern, text.trim().to_owned()),
            _ => (Text::Any, String::new()),
        };
        match word {
            "ordered" => eval.ordered = true,
            "fail" => {
                eval.fail = true;
                eval.fail_texts.push(text);
            }
            "warn" => eval.warn_texts.push(text),
            "info" => eval.info_texts.push(text),
            "no_warn" => eval.no_warn = true,
            "no_info" => eval.no_info = true,
            word => panic!("expect {word}"),
        }
    } else if let Some(value) = number(line) {
        eval.scalar = Some(value);
    } else {
        let (labels, rest) = metric(line);
        eval.series.push((labels, values(rest)));
    }
}
