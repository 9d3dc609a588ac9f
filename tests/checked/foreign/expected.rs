//! Tests that a source states in its programs, as piglit's do: arguments of a kernel, and the results.

use std::collections::BTreeMap;

use bytemuck::pod_read_unaligned as number;
use kiln::{Buffer, Kernel, Launch, Runtime};

use super::arguments::parts;
use crate::elements::{size_of_scalar, with_buffer, with_value};

/// Test of a kernel. Results are numbers of one of the types of [`bytes_of`].
#[derive(Clone, Debug, Default)]
pub(super) struct Test {
    pub(super) name: String,
    pub(super) kernel: String,
    global: Vec<usize>,
    local: Option<Vec<usize>>,
    dimensions: usize,
    arguments: BTreeMap<usize, Argument>,
    results: BTreeMap<usize, Argument>,
    /// Whether all lines were understood.
    is_known: bool,
}

/// Argument or result.
#[derive(Clone, Debug)]
struct Argument {
    scalar: String,
    is_buffer: bool,
    bytes: Vec<u8>,
}

/// Returns the tests in the first comment of a program, as far as they are understood.
pub(super) fn tests_of(text: &str) -> Vec<Test> {
    let comment = text.split_once("/*!").and_then(|(_, rest)| rest.split_once("!*/"));
    let Some((comment, _)) = comment else { return Vec::new() };
    let start = Test { dimensions: 1, global: vec![1], is_known: true, ..Test::default() };
    let (mut common, mut tests) = (start, Vec::<Test>::new());
    for line in comment.lines().map(str::trim) {
        if line == "[test]" {
            tests.push(common.clone());
        }
        let test = tests.last_mut().unwrap_or(&mut common);
        let Some((key, value)) = line.split_once(':') else { continue };
        test.read(key.trim(), value.trim());
    }
    tests.retain(|test| test.is_known && !test.results.is_empty());
    tests
}

impl Test {
    /// Reads a line.
    fn read(&mut self, key: &str, value: &str) {
        let numbers = || value.split_whitespace().filter_map(|number| number.parse().ok());
        match key {
            "name" => value.clone_into(&mut self.name),
            "kernel_name" => value.clone_into(&mut self.kernel),
            "dimensions" => self.dimensions = numbers().next().unwrap_or(1),
            "global_size" => self.global = numbers().collect(),
            "local_size" => self.local = Some(numbers().collect()),
            "arg_in" | "arg_out" => match argument(value) {
                Some((index, argument)) if key == "arg_in" => {
                    self.arguments.insert(index, argument);
                }
                Some((index, result)) => {
                    self.results.insert(index, result);
                }
                None => self.is_known = false,
            },
            _ => {}
        }
    }

    fn launch(&self, kernel: &Kernel) -> Launch {
        let launch = kernel.launch(support::size(&self.global[..self.dimensions]));
        match &self.local {
            Some(local) => launch.local(support::size(&local[..self.dimensions])),
            None => launch,
        }
    }

    /// Runs the test. Returns the first difference from the results, or `None` if an argument is missing.
    ///
    /// # Errors
    ///
    /// Returns the launch's error.
    pub(super) async fn run(&self, rt: &Runtime, kernel: &Kernel) -> kiln::Result<Option<String>> {
        let mut launch = self.launch(kernel);
        let mut buffers = BTreeMap::<usize, Buffer<u8>>::new();
        let mut index = 0;
        while let Some(given) = self.arguments.get(&index).or_else(|| self.results.get(&index)) {
            let Argument { scalar, is_buffer, bytes } = given;
            if *is_buffer {
                let is_input = self.arguments.contains_key(&index);
                let bytes = if is_input { bytes.clone() } else { vec![0; bytes.len()] };
                let buffer = rt.buffer_from(bytes).await?;
                launch = with_buffer(launch, &buffer, scalar)?;
                buffers.insert(index, buffer);
            } else {
                launch = with_value(launch, bytes, scalar).expect("it has a known type");
            }
            index += 1;
        }
        rt.queue().submit(launch)?.await?;
        for (index, expected) in &self.results {
            let Some(buffer) = buffers.get(index) else { continue };
            let found = rt.queue().read(buffer).await?;
            if let Some(difference) = difference(&expected.scalar, &found, &expected.bytes) {
                return Ok(Some(format!("argument {index}: {difference}")));
            }
        }
        Ok(None)
    }
}

/// Reads an argument: its index, `buffer`, its type and its values, such as `0 buffer int2[2] 1 2 3 4`.
fn argument(text: &str) -> Option<(usize, Argument)> {
    let mut words = text.split_whitespace().peekable();
    let index = words.next()?.parse().ok()?;
    let is_buffer = words.next_if_eq(&"buffer").is_some();
    let type_name = words.next()?;
    let (type_name, count) = match type_name.split_once('[') {
        Some((type_name, count)) => (type_name, count.strip_suffix(']')?.parse().ok()?),
        None => (type_name, 1),
    };
    let (scalar, lanes) = parts(type_name);
    // It is not stated whether the fourth component of a vector of three has a value.
    if type_name.ends_with('3') {
        return None;
    }
    let is_repeated = words.next_if_eq(&"repeat").is_some();
    let values: Vec<_> = words.take_while(|word| *word != "tolerance").collect();
    let count = count * lanes;
    if values.is_empty() || !is_repeated && values.len() != count {
        return None;
    }
    let mut bytes = Vec::new();
    for value in values.iter().cycle().take(count) {
        bytes.extend(bytes_of(scalar, value)?);
    }
    Some((index, Argument { scalar: scalar.to_owned(), is_buffer, bytes }))
}

/// Returns the bytes of a number of a type.
fn bytes_of(scalar: &str, number: &str) -> Option<Vec<u8>> {
    match scalar {
        "float" => Some(number.parse::<f32>().ok()?.to_le_bytes().to_vec()),
        "double" => Some(number.parse::<f64>().ok()?.to_le_bytes().to_vec()),
        "char" | "uchar" | "short" | "ushort" | "int" | "uint" | "long" | "ulong" => {
            let digits = number.trim_start_matches('-');
            let value = match digits.strip_prefix("0x") {
                Some(digits) => i128::from_str_radix(digits, 16).ok()?,
                None => digits.parse().ok()?,
            };
            let value = if number.starts_with('-') { -value } else { value };
            Some(value.to_le_bytes()[..size_of_scalar(scalar)].to_vec())
        }
        _ => None,
    }
}

/// Returns the first difference of results from what they have to be, in words. Drivers may round floating-point
/// numbers.
fn difference(scalar: &str, found: &[u8], expected: &[u8]) -> Option<String> {
    let is_near = |found: f64, expected: f64| {
        found.is_nan() && expected.is_nan()
            || found == expected
            || (found - expected).abs() <= expected.abs().max(1.0) * 1e-3
    };
    let is_same = |found: &[u8], expected: &[u8]| match scalar {
        "float" => is_near(number::<f32>(found).into(), number::<f32>(expected).into()),
        "double" => is_near(number(found), number(expected)),
        _ => found == expected,
    };
    let size = size_of_scalar(scalar);
    let mut pairs = found.chunks(size).zip(expected.chunks(size)).enumerate();
    let (at, (found, expected)) = pairs.find(|(_, (found, expected))| !is_same(found, expected))?;
    Some(format!("element {at} of type `{scalar}` is {found:?}, not {expected:?}"))
}
