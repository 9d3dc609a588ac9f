//! Directive about fusion: `fuse` shows the verdicts on launches, and the kernel that does the work of all.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::LazyLock;

use kiln_compiler::fusion::{
    self, Argument, Examinations, Fused, FusionForm, FusionReport, Image, Internalization, Memory,
    Place, Plan, Programs, Region, Slot, Target, Trust, Width,
};
use kiln_compiler::{NdRange, bounds, opencl_c};
use kiln_spirv::Module;
use rspirv::binary::Disassemble;
use test_tools::programs::{has_tool, validate};

use super::Outcome;
use super::arguments::{self, Memories};
use super::directives::Directive;
use super::emit;
use super::launches::{LaunchText, RangeText, Words};
use super::program::{Program, failure};

/// Length in bytes of buffers whose length is not stated.
const LENGTH: usize = 4096;

/// Whether this system has spirv-val.
static HAS_VALIDATOR: LazyLock<bool> =
    LazyLock::new(|| has_tool("spirv-val", &["spirv-val", "--version"]));

/// Code of a fused kernel that claims are about.
#[derive(Clone, Copy)]
enum Code {
    /// Disassembly of the whole module.
    Module,
    /// Disassembly of the entry function.
    Entry,
    /// OpenCL C.
    OpenClC,
}

/// Input of fusion: a plan, and how it is fused.
pub(super) struct Request {
    code: Code,
    /// Whether spirv-val must accept the fused module.
    is_validated: bool,
    /// Whether the fused kernel must be proven to stay inside its memory if all launches are.
    keeps_bounds: bool,
    pub(super) plan: Plan,
    pub(super) trust: Trust,
    pub(super) width: Width,
    pub(super) forms: Vec<FusionForm>,
}

/// Shows the verdicts on launches and the kernel that does the work of all. The launches follow in lines that are
/// indented, and the words after `fuse` apply to all of them: see [`Request::parse`].
///
/// # Errors
///
/// Returns what is wrong with the directive, or with the fused kernel.
pub(super) fn fuse(program: &Program, directive: &Directive) -> Result<Outcome, String> {
    let request = Request::parse(program, directive)?;
    let mut all = Outcome::default();
    for &form in &request.forms {
        let outcome = in_form(program, &request, form)?;
        if request.forms.len() > 1 {
            _ = writeln!(all.shown, "in the form {form}:");
        }
        all.shown += &outcome.shown;
        all.code += &outcome.code;
    }
    Ok(all)
}

fn in_form(program: &Program, request: &Request, form: FusionForm) -> Result<Outcome, String> {
    let Request { plan, trust, width, .. } = request;
    let modules = [&program.module];
    let fuse = || {
        let programs = Programs { modules: &modules, examinations: &Examinations::default() };
        fusion::fuse(plan, programs, *trust, *width, form)
    };
    let outcome = match fuse() {
        Ok(outcome) => outcome,
        Err(error) => return Ok(Outcome::shown(format!("error: {}\n", failure(&error)))),
    };
    let mut shown = format!("{}\n", FusionReport::of(plan, &outcome));
    for (name, sets) in [
        ("equal", outcome.equal.iter().map(places).collect::<Vec<_>>()),
        ("unequal", outcome.unequal.iter().map(places).collect()),
    ] {
        if !sets.is_empty() {
            _ = writeln!(shown, "{name}: {}", sets.join(", "));
        }
    }
    let Ok(fused) = &outcome.fused else { return Ok(Outcome::shown(shown)) };
    shown += &describe(fused);
    shown += &bounds_of(program, request, fused)?;
    let bytes = fused.module.assemble();
    let again = fuse().ok().and_then(|outcome| outcome.fused.ok());
    if again.is_none_or(|again| again.module.assemble() != bytes) {
        return Err("another call gives a fused module of other bytes".to_owned());
    }
    if request.is_validated && *HAS_VALIDATOR {
        validate(&bytes).map_err(|why| format!("the fused module is not valid: {why}"))?;
    }
    Ok(Outcome { shown, code: code(&bytes, request.code)? })
}

/// Returns the code of a fused module that claims are about.
fn code(bytes: &[u8], which: Code) -> Result<String, String> {
    let disassembled = || match rspirv::dr::load_bytes(bytes) {
        Ok(module) => Ok(module.disassemble()),
        Err(error) => Err(error.to_string()),
    };
    match which {
        Code::Module => disassembled(),
        Code::Entry => {
            let text = disassembled()?;
            let start = text.rfind("OpFunction ").ok_or("the fused module has no function")?;
            Ok(text[start..].to_owned())
        }
        Code::OpenClC => {
            let text = Module::parse(bytes).and_then(|module| opencl_c::opencl_c(&module));
            text.map_err(|error| error.to_string())
        }
    }
}

/// Returns places in words, such as `0.1 = 2.0`: launch 0, argument 1, and launch 2, argument 0.
fn places<'p>(places: impl IntoIterator<Item = &'p Place>) -> String {
    let places = places.into_iter().map(|place| format!("{}.{}", place.slot, place.argument));
    places.collect::<Vec<_>>().join(" = ")
}

fn describe(fused: &Fused) -> String {
    let range = &fused.range;
    let mut text = format!("range: {:?}", range.global());
    if range.offset().iter().any(|&offset| offset != 0) {
        _ = write!(text, " from {:?}", range.offset());
    }
    if let Some(local) = range.local() {
        _ = write!(text, " in {local:?}");
    }
    let parameters: Vec<_> = fused.parameters.iter().map(places).collect();
    let version = fused.module.header.version;
    _ = writeln!(text, "\nparameters: {}", parameters.join(", "));
    _ = writeln!(
        text,
        "local memory: {} bytes, private memory: {} bytes, parameters: {} bytes, SPIR-V {}.{}",
        fused.local_bytes, fused.private_bytes, fused.parameter_bytes, version.0, version.1
    );
    if fused.runs.iter().any(|&runs| runs != 100) {
        _ = writeln!(text, "runs for 100 work-items: {:?}", fused.runs);
    }
    text
}

impl Request {
    /// Parses the launches and the words of a directive:
    ///
    /// * `over SIZE from OFFSET in SIZE`: the nd-range of launches that state none
    /// * `dead NAME,NAME`: buffers that are not read later
    /// * `form FORM,FORM`: forms of the kernel, `direct` by default
    /// * `keep NAME:local,NAME:private`: requested forms of buffers
    /// * `fix 0.2,1.2`: scalars that are constants, by launch and argument
    /// * `trusted`: the caller vouches for the launches
    /// * `wide MOST/LEAST`: work-items do the work of `MOST`, as long as `LEAST` are left
    /// * `code entry` or `code opencl-c`: the code that claims are about, instead of the disassembled module
    /// * `bounds-lost`: the fused kernel need not be proven to stay inside its memory, though all launches are
    /// * `not-validated`: spirv-val need not accept the fused module, because it does not accept the given one
    /// * `local-memory BYTES`, `version 1.6`, `apart`, `unordered`, `widen`: properties of the device
    ///
    /// # Errors
    ///
    /// Returns what is wrong with the directive.
    pub(super) fn parse(program: &Program, directive: &Directive) -> Result<Self, String> {
        let usual = usual_range(&directive.rest)?;
        let mut memories = Memories::default();
        let slots = directive.body.iter().map(|line| slot(program, line, usual, &mut memories));
        let plan = Plan {
            modules: vec![[0; 32]],
            slots: slots.collect::<Result<_, _>>()?,
            constants: BTreeSet::new(),
            dead: BTreeSet::new(),
            forms: BTreeMap::new(),
            target: Target {
                version: (1, 6),
                local_memory: 1 << 15,
                separate_functions: false,
                order_own_accesses: true,
                widen_vectors: false,
            },
        };
        let (trust, width) = (Trust::ProofOnly, Width::ONE);
        let (code, forms) = (Code::Module, vec![FusionForm::Direct]);
        let mut request =
            Self { code, is_validated: true, keeps_bounds: true, plan, trust, width, forms };
        let mut words = Words::of(&directive.rest);
        while let Some(word) = words.next() {
            request.set(word, &mut words, &memories)?;
        }
        Ok(request)
    }

    /// Applies a word of the directive.
    fn set(
        &mut self,
        word: &str,
        words: &mut Words<'_>,
        memories: &Memories,
    ) -> Result<(), String> {
        let plan = &mut self.plan;
        match word {
            "trusted" => self.trust = Trust::Caller,
            "apart" => plan.target.separate_functions = true,
            "unordered" => plan.target.order_own_accesses = false,
            "bounds-lost" => self.keeps_bounds = false,
            "not-validated" => self.is_validated = false,
            "widen" => plan.target.widen_vectors = true,
            "code" => {
                self.code = match words.after(word)? {
                    "entry" => Code::Entry,
                    "opencl-c" => Code::OpenClC,
                    other => return Err(format!("`{other}` is not entry or opencl-c")),
                };
            }
            "dead" => {
                let names = words.after(word)?.split(',').map(|name| memories.get(name));
                plan.dead = names.collect::<Result<_, _>>()?;
            }
            "form" => {
                let forms = words.after(word)?.split(',').map(str::parse::<FusionForm>);
                let forms = forms.collect::<kiln_spirv::Result<_>>();
                self.forms = forms.map_err(|error| error.to_string())?;
            }
            "keep" => {
                let kept = words.after(word)?.split(',').map(|text| kept(text, memories));
                plan.forms = kept.collect::<Result<_, _>>()?;
            }
            "fix" => {
                let places = words.after(word)?.split(',').map(place);
                plan.constants = places.collect::<Result<_, _>>()?;
            }
            "wide" => {
                let (most, least_left) = pair(words.after(word)?, '/')?;
                self.width = Width { most, least_left };
            }
            "local-memory" => plan.target.local_memory = whole(words.after(word)?)?,
            "version" => {
                let (major, minor) = pair(words.after(word)?, '.')?;
                plan.target.version = (major as u8, minor as u8);
            }
            _ if RangeText::default().take(word, words)? => {}
            _ => return Err(format!("`{word}` is not a word of this directive")),
        }
        Ok(())
    }
}

/// Returns the nd-range of launches that state none.
fn usual_range(text: &str) -> Result<RangeText, String> {
    let (mut range, mut words) = (RangeText::default(), Words::of(text));
    while let Some(word) = words.next() {
        range.take(word, &mut words)?;
    }
    Ok(range)
}

fn slot(
    program: &Program,
    line: &str,
    usual: RangeText,
    memories: &mut Memories,
) -> Result<Slot, String> {
    let (launch, words) = LaunchText::parse(line)?;
    let (mut range, mut words) = (RangeText::default(), Words::of(words));
    let mut constants = Vec::new();
    while let Some(word) = words.next() {
        match word {
            "with" => constants.push(emit::constant(words.after(word)?)?),
            _ if range.take(word, &mut words)? => {}
            _ => return Err(format!("`{word}` is not over, from, in or with")),
        }
    }
    let arguments = memories.arguments(program, &launch, LENGTH)?.into_iter();
    let arguments = arguments.map(|argument| argument.ok_or("fusion needs each argument"));
    Ok(Slot {
        module: 0,
        kernel: launch.kernel,
        range: range.or(usual).range()?,
        arguments: arguments.collect::<Result<_, _>>()?,
        constants,
    })
}

/// Parses the requested form of a buffer, such as `tmp:local`.
fn kept(text: &str, memories: &Memories) -> Result<(Memory, Internalization), String> {
    let form = match text.split_once(':') {
        Some((name, "local")) => (memories.get(name)?, Internalization::Local),
        Some((name, "private")) => (memories.get(name)?, Internalization::Private),
        _ => return Err(format!("`{text}` is not a form of a buffer, such as tmp:local")),
    };
    Ok(form)
}

fn place(text: &str) -> Result<Place, String> {
    let (slot, argument) = pair(text, '.')?;
    Ok(Place { slot, argument })
}

fn pair(text: &str, between: char) -> Result<(usize, usize), String> {
    let (one, other) = text
        .split_once(between)
        .ok_or_else(|| format!("`{text}` is not two numbers with `{between}` between them"))?;
    Ok((whole(one)?, whole(other)?))
}

fn whole(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| format!("`{text}` is not a whole number"))
}

/// Describes whether a fused kernel is proven to stay inside its memory.
///
/// # Errors
///
/// Returns what is not proven, if all launches are proven and the request does not allow it.
fn bounds_of(program: &Program, request: &Request, fused: &Fused) -> Result<String, String> {
    let plan = &request.plan;
    let is_proven = |slot: &Slot| {
        let given: Vec<_> = slot.arguments.iter().map(given).collect();
        let none = BTreeSet::new();
        let kernel = bounds::Kernel::of(&program.module, &slot.kernel, &slot.constants, &none);
        findings(kernel, &slot.range, &given).is_empty()
    };
    if !plan.slots.iter().all(is_proven) {
        return Ok("bounds: not all launches are proven\n".to_owned());
    }
    let argument = |places: &Vec<Place>| {
        let place = places.first().ok_or("a parameter stands for no argument")?;
        Ok(given(&plan.slots[place.slot].arguments[place.argument]))
    };
    let given = fused.parameters.iter().map(argument).collect::<Result<Vec<_>, String>>()?;
    let kernel = bounds::Kernel::of_fused(&fused.module, &fused.kernel, &BTreeSet::new());
    let findings = findings(kernel, &fused.range, &given);
    if findings.is_empty() {
        return Ok("bounds: the launches and the fused kernel are proven\n".to_owned());
    }
    let lost = format!(
        "the launches are proven, but the fused kernel is not:\n  {}\n",
        findings.join("\n  ")
    );
    if request.keeps_bounds { Err(lost) } else { Ok(format!("bounds: {lost}")) }
}

/// Returns an argument in the form of the check of bounds.
fn given(argument: &Argument) -> bounds::Argument {
    match argument {
        Argument::Buffer(Region { offset, length, .. }) => {
            let alignment = if *offset == 0 { 128 } else { 1 << offset.trailing_zeros().min(7) };
            bounds::Argument::Buffer { length: *length, alignment }
        }
        Argument::Scalar(bytes) => bounds::Argument::Scalar(bytes.clone()),
        Argument::Local(bytes) => bounds::Argument::Local(*bytes),
        Argument::Image(Image { shape, .. }) => bounds::Argument::Image {
            type_name: shape.kind.type_name(),
            size: shape.size,
            channel: arguments::channel(shape.format.channel),
        },
        Argument::Sampler(sampler) => bounds::Argument::Sampler(*sampler),
    }
}

/// Returns what is not proven of a launch.
fn findings(
    kernel: kiln_spirv::Result<bounds::Kernel>,
    range: &NdRange,
    arguments: &[bounds::Argument],
) -> Vec<String> {
    let launch = bounds::Launch { range, arguments, uniform_groups: false, few_constants: false };
    let report = kernel.and_then(|kernel| Ok((bounds::check(&kernel, &launch)?, kernel)));
    match report {
        Ok((report, kernel)) => report.describe(&kernel),
        Err(error) => vec![error.to_string()],
    }
}
