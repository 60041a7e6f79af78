//! Reads the subset of SVG that plotters writes: lines, rectangles and text, in pixels of the picture.

use rnic_plot::FINENESS;
use rnic_plot::figure::Color;
use std::collections::BTreeMap;

type Attributes = BTreeMap<String, String>;

#[derive(Debug)]
pub(super) struct Line {
    color: String,
    width: f64,
    points: Vec<(f64, f64)>,
}

#[derive(Debug)]
pub(super) struct Text {
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) anchor: String,
    pub(super) content: String,
}

#[derive(Debug)]
pub(super) struct Rectangle {
    pub(super) x: f64,
    pub(super) width: f64,
    pub(super) height: f64,
}

#[derive(Debug)]
pub(super) struct Picture {
    pub(super) width: f64,
    pub(super) texts: Vec<Text>,
    pub(super) rectangles: Vec<Rectangle>,
    lines: Vec<Line>,
}

/// A diagram with its axes.
#[derive(Debug)]
pub(super) struct Panel {
    pub(super) right: f64,
    pub(super) top: f64,
    pub(super) bottom: f64,
    /// Pixels and the numbers at them.
    across: Vec<(f64, f64)>,
    up: Vec<(f64, f64)>,
}

/// `key="value"` pairs of a tag.
fn attributes(tag: &str) -> Attributes {
    let mut found = Attributes::new();
    let mut rest = tag;
    while let Some((key, after)) = rest.split_once("=\"") {
        let (value, after) = after.split_once('"').expect("a quote that closes");
        let key = key.rsplit(' ').next().expect("a key");
        found.insert(key.to_owned(), value.to_owned());
        rest = after;
    }
    found
}

fn number(of: &Attributes, key: &str) -> f64 {
    of[key].parse::<f64>().expect("a number") / FINENESS
}

fn plain(text: &str) -> String {
    let text = text.trim().replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"");
    text.replace("&apos;", "'").replace("&amp;", "&")
}

impl Picture {
    pub(super) fn parse(svg: &str) -> Self {
        let mut picture = Self { width: 0.0, texts: Vec::new(), rectangles: Vec::new(), lines: Vec::new() };
        for element in svg.split('<').skip(1) {
            let (tag, content) = element.split_once('>').expect("a tag that closes");
            let of = attributes(tag);
            match tag.split([' ', '/']).next().expect("a name") {
                "svg" => picture.width = of["width"].parse().expect("a number"),
                "text" => picture.texts.push(Text {
                    x: number(&of, "x"),
                    y: number(&of, "y"),
                    anchor: of["text-anchor"].clone(),
                    content: plain(content),
                }),
                "rect" => picture.rectangles.push(Rectangle {
                    x: number(&of, "x"),
                    width: number(&of, "width"),
                    height: number(&of, "height"),
                }),
                "polyline" => {
                    let point = |point: &str| {
                        let (x, y) = point.split_once(',').expect("a point");
                        let pixels = |text: &str| text.parse::<f64>().expect("a number") / FINENESS;
                        (pixels(x), pixels(y))
                    };
                    picture.lines.push(Line {
                        color: of["stroke"].clone(),
                        width: number(&of, "stroke-width"),
                        points: of["points"].split_whitespace().map(point).collect(),
                    });
                }
                _ => {}
            }
        }
        picture
    }

    pub(super) fn has_text(&self, content: &str) -> bool {
        self.texts.iter().any(|text| text.content.contains(content))
    }

    /// The panel whose axis has this label. Its grid lines are in the order of their numbers.
    pub(super) fn panel(&self, label: &str) -> Panel {
        let label = self.texts.iter().find(|text| text.content == label).expect("a panel with this label");
        // The frame is the only line of its colour with three points.
        let frames = self.lines.iter().filter(|line| line.color == "#999999" && line.points.len() == 3);
        let frame = frames
            .map(|line| &line.points)
            .find(|corner| corner[0].1 < label.y && label.y < corner[1].1)
            .expect("a frame beside the label");
        let (left, top, right, bottom) = (frame[0].0, frame[0].1, frame[2].0, frame[2].1);
        let inside = |line: &&Line| {
            line.color == "#E3E3E3" && line.points.iter().all(|p| (top..=bottom).contains(&p.1))
        };
        let grid: Vec<_> = self.lines.iter().filter(inside).collect();
        let numbers = |wanted: &dyn Fn(&Text) -> bool| -> Vec<f64> {
            let texts = self.texts.iter().filter(|text| wanted(text));
            texts.filter_map(|text| text.content.parse().ok()).collect()
        };
        let beside = |text: &Text| {
            text.anchor == "end" && text.x < left && (top - 20.0..bottom + 5.0).contains(&text.y)
        };
        let below = |text: &Text| text.anchor == "middle";
        let flat =
            grid.iter().filter(|line| line.points[0].1 == line.points[1].1).map(|line| line.points[0].1);
        let upright =
            grid.iter().filter(|line| line.points[0].0 == line.points[1].0).map(|line| line.points[0].0);
        let up: Vec<_> = flat.zip(numbers(&beside)).collect();
        let across: Vec<_> = upright.zip(numbers(&below)).collect();
        assert!(up.len() > 1 && across.len() > 1, "{up:?} {across:?}");
        Panel { right, top, bottom, across, up }
    }

    /// Lines of this colour and width in a panel.
    pub(super) fn lines(&self, panel: &Panel, color: Color, width: f64) -> Vec<Vec<(f64, f64)>> {
        let color = format!("#{:02X}{:02X}{:02X}", color.0, color.1, color.2);
        let inside = |line: &&Line| {
            line.color == color
                && (line.width - width).abs() < 0.06
                && line.points.iter().all(|p| (panel.top..=panel.bottom).contains(&p.1) && p.0 <= panel.right)
        };
        self.lines.iter().filter(inside).map(|line| line.points.clone()).collect()
    }
}

/// The value at a pixel of an axis, from its first and its last number.
fn read(axis: &[(f64, f64)], pixel: f64) -> f64 {
    let ((from, low), (to, high)) = (axis[0], axis[axis.len() - 1]);
    low + (pixel - from) / (to - from) * (high - low)
}

impl Panel {
    pub(super) fn time(&self, x: f64) -> f64 {
        read(&self.across, x)
    }

    /// The points of a line in units of the axes.
    pub(super) fn values(&self, line: &[(f64, f64)]) -> Vec<(f64, f64)> {
        line.iter().map(|(x, y)| (self.time(*x), read(&self.up, *y))).collect()
    }
}
