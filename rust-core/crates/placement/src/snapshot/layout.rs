//! How a snapshot is laid out: readable, and of a size that a large cluster bears.

use std::io;

use serde::Serialize;
use serde_json::ser::{Formatter, Serializer};

/// Members of the document and of its sections come on lines of their own, and so do the elements within an element
/// of a section (cards, shares, parts of an operation); all else is written side by side.
fn breaks(depth: usize) -> bool {
    matches!(depth, 1 | 2 | 4)
}

#[derive(Default)]
struct Layout {
    depth: usize,
    has_value: bool,
}

impl Layout {
    fn open<W: io::Write + ?Sized>(&mut self, writer: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth += 1;
        self.has_value = false;
        writer.write_all(bracket)
    }

    fn close<W: io::Write + ?Sized>(&mut self, writer: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth -= 1;
        if self.has_value && breaks(self.depth + 1) {
            self.new_line(writer)?;
        }
        self.has_value = true;
        writer.write_all(bracket)
    }

    fn next<W: io::Write + ?Sized>(&self, writer: &mut W, first: bool) -> io::Result<()> {
        if !first {
            writer.write_all(b",")?;
        }
        match (breaks(self.depth), first) {
            (true, _) => self.new_line(writer),
            (false, true) => Ok(()),
            (false, false) => writer.write_all(b" "),
        }
    }

    fn new_line<W: io::Write + ?Sized>(&self, writer: &mut W) -> io::Result<()> {
        const BREAK: &[u8] = b"\n        ";
        // Levels that are written side by side are not indented.
        let level = if self.depth > 2 { self.depth - 1 } else { self.depth };
        writer.write_all(&BREAK[..=2 * level])
    }
}

impl Formatter for Layout {
    fn begin_array<W: io::Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.open(writer, b"[")
    }

    fn end_array<W: io::Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.close(writer, b"]")
    }

    fn begin_array_value<W: io::Write + ?Sized>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.next(writer, first)
    }

    fn end_array_value<W: io::Write + ?Sized>(&mut self, _writer: &mut W) -> io::Result<()> {
        self.has_value = true;
        Ok(())
    }

    fn begin_object<W: io::Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.open(writer, b"{")
    }

    fn end_object<W: io::Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.close(writer, b"}")
    }

    fn begin_object_key<W: io::Write + ?Sized>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.next(writer, first)
    }

    fn begin_object_value<W: io::Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }

    fn end_object_value<W: io::Write + ?Sized>(&mut self, _writer: &mut W) -> io::Result<()> {
        self.has_value = true;
        Ok(())
    }
}

pub(super) fn write(value: &impl Serialize) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut serializer = Serializer::with_formatter(&mut bytes, Layout::default());
    value.serialize(&mut serializer).expect("text keys and a buffer in memory cannot fail");
    bytes.push(b'\n');
    bytes
}
