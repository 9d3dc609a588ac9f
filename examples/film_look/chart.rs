//! Bar charts as SVG pictures.

use std::fmt::Write as _;

/// Chart of bars for one quantity.
pub(crate) struct Panel {
    pub(crate) title: String,
    pub(crate) unit: &'static str,
    pub(crate) bars: Vec<Bar>,
}

pub(crate) struct Bar {
    pub(crate) label: String,
    pub(crate) value: f64,
}

const WIDTH: f64 = 760.0;
const LABELS: f64 = 130.0;
const NUMBERS: f64 = 90.0;
const BAR: f64 = 22.0;
const TITLE: f64 = 34.0;
const GAP: f64 = 8.0;

/// Returns all panels as one SVG picture, one below the other. Lengths are comparable within a panel.
pub(crate) fn svg(heading: &str, panels: &[Panel]) -> String {
    let height_of = |panel: &Panel| TITLE + panel.bars.len() as f64 * (BAR + GAP) + GAP;
    let height = TITLE + panels.iter().map(height_of).sum::<f64>();
    let mut body = String::new();
    let mut y = TITLE;
    text(&mut body, 10.0, 22.0, "bold", heading);
    for panel in panels {
        text(&mut body, 10.0, y + 22.0, "normal", &panel.title);
        let longest = panel.bars.iter().map(|bar| bar.value).fold(0.0, f64::max);
        let scale = (WIDTH - LABELS - NUMBERS) / longest.max(f64::MIN_POSITIVE);
        let mut top = y + TITLE;
        for bar in &panel.bars {
            let length = bar.value * scale;
            text(&mut body, 20.0, top + 16.0, "normal", &bar.label);
            rectangle(&mut body, LABELS, top, length);
            let number = format!("{:.1} {}", bar.value, panel.unit);
            text(&mut body, LABELS + length + 6.0, top + 16.0, "normal", &number);
            top += BAR + GAP;
        }
        y += height_of(panel);
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"14\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n{body}</svg>\n"
    )
}

fn text(body: &mut String, x: f64, y: f64, weight: &str, text: &str) {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    let _ =
        writeln!(body, "<text x=\"{x:.1}\" y=\"{y:.1}\" font-weight=\"{weight}\">{text}</text>");
}

fn rectangle(body: &mut String, x: f64, y: f64, width: f64) {
    let _ = writeln!(
        body,
        "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{BAR}\" fill=\"#2f6f9f\"/>"
    );
}
