//! Tests of keys: the inputs that they cover, and their stability.

use std::collections::HashSet;
use std::ffi::OsString;

use crate::build_graph::key::{ConstantBytes, DeviceKey, InputFields, NodeKind, ProgramFields};
use crate::build_graph::options::{OptionSource, SourcedOptions};
use crate::device::DeviceInfo;
use crate::digest::Digest;
use crate::source::module::Module;

struct Inputs {
    kind: NodeKind,
    emitter: Option<u32>,
    modules: Vec<Digest>,
    /// Constants of the last module. `options` are also those of the last module.
    constants: Vec<(u32, ConstantBytes)>,
    options: String,
    link_options: String,
    /// Source of all options.
    source: OptionSource,
    /// Definitions that are removed from the last module.
    replaced: Vec<String>,
    info: DeviceInfo,
    environment: Vec<(&'static str, &'static str)>,
}

fn inputs() -> Inputs {
    Inputs {
        kind: NodeKind::Program,
        emitter: None,
        modules: vec![Digest([1; 32]), Digest([2; 32])],
        constants: vec![
            (3, ConstantBytes::from_slice(&[1, 2, 3, 4])),
            (9, ConstantBytes::from_slice(&[5])),
        ],
        options: "-w -D A=1".to_owned(),
        link_options: String::new(),
        source: OptionSource::Call,
        replaced: Vec::new(),
        info: DeviceInfo::fake(),
        environment: vec![("IGC_Opt", "x"), ("POCL_EXTRA_BUILD_FLAGS", "-g"), ("HOME", "/root")],
    }
}

impl Inputs {
    fn with<T>(&self, read: impl FnOnce(&ProgramFields<'_>) -> T) -> T {
        let variables = self
            .environment
            .iter()
            .map(|(name, value)| (OsString::from(name), OsString::from(value)));
        let (none, options) =
            (SourcedOptions::default(), SourcedOptions::of(self.source, &self.options));
        let plain = |module: &Digest| InputFields {
            module: *module,
            included: None,
            files: &[],
            constants: &[],
            options: &none,
            link_options: &none,
            replaced: &[],
        };
        let mut inputs: Vec<_> = self.modules.iter().map(plain).collect();
        if let Some(last) = inputs.last_mut() {
            (last.constants, last.options) = (&self.constants, &options);
            last.replaced = &self.replaced;
        }
        read(&ProgramFields {
            kind: self.kind,
            is_linked_by_calls: false,
            emitter: self.emitter,
            merger: None,
            inputs: &inputs,
            link_options: &SourcedOptions::of(self.source, &self.link_options),
            front_end: &[],
            device: &DeviceKey::new(self.info.identity(), variables),
        })
    }

    fn key(&self) -> String {
        self.with(|fields| fields.key().to_string())
    }
}

#[test]
fn the_key_is_stable() {
    assert_eq!(inputs().key(), "c4630f08815dd24b10351d5f07662b679a9fc32478199f013775735a1232c3fb");
    let mut moved = inputs();
    moved.environment.reverse();
    moved.environment.retain(|(name, _)| *name != "HOME");
    moved.environment.push(("POCL_CACHE_DIR", "/tmp"));
    assert_eq!(
        moved.key(),
        inputs().key(),
        "neither the order of variables nor unrelated variables matter"
    );
}

#[test]
fn every_field_alone_changes_the_key() {
    type Change = fn(&mut Inputs);
    let changes: &[(&str, Change)] = &[
        ("the kind", |i| i.kind = NodeKind::Object),
        ("the emitter", |i| i.emitter = Some(1)),
        ("the emitter's version", |i| i.emitter = Some(2)),
        ("a module", |i| i.modules[0].0[31] ^= 1),
        ("the order of modules", |i| i.modules.swap(0, 1)),
        ("a module less", |i| i.modules.truncate(1)),
        ("a constant's id", |i| i.constants[0].0 = 4),
        ("a constant's value", |i| i.constants[0].1[3] = 0),
        ("a constant's size", |i| i.constants[1].1.push(0)),
        ("a constant less", |i| i.constants.truncate(1)),
        ("the options", |i| i.options.push('0')),
        ("the order of options", |i| {
            i.options = "-D A=1 -w".to_owned();
        }),
        ("no options", |i| i.options.clear()),
        ("options of the linker", |i| i.link_options.push_str("-w")),
        ("the same options of the linker alone", |i| {
            i.link_options = std::mem::take(&mut i.options);
        }),
        ("a removed definition", |i| i.replaced = vec!["f".to_owned()]),
        ("another removed definition", |i| i.replaced = vec!["g".to_owned()]),
        ("two removed definitions", |i| i.replaced = vec!["f".to_owned(), "g".to_owned()]),
        ("the backend", |i| i.info.backend = "level-zero"),
        ("the platform", |i| i.info.platform.push('x')),
        ("the platform's version", |i| i.info.platform_version.push('x')),
        ("the instructions", |i| i.info.instructions.push('x')),
        ("the vendor", |i| i.info.vendor.push('x')),
        ("the device", |i| i.info.name.push('x')),
        ("the device version", |i| i.info.device_version.push('x')),
        ("the driver version", |i| i.info.driver_version.push('x')),
        ("the driver's compiler", |i| i.info.compiler.push('x')),
        ("the il version", |i| i.info.il_version.push('x')),
        ("a variable's value", |i| i.environment[1].1 = "-g1"),
        ("a variable's name", |i| i.environment[0].0 = "IGC_Opu"),
        ("a variable that a new version adds", |i| {
            i.environment.push(("POCL_BRAND_NEW", "1"));
        }),
        ("an empty variable", |i| {
            i.environment.push(("CL_CONFIG_CPU_TARGET_ARCH", ""));
        }),
        ("a variable less", |i| i.environment.truncate(1)),
    ];
    let mut keys = HashSet::from([inputs().key()]);
    let mut listings = HashSet::from([inputs().with(|fields| fields.fields())]);
    for (what, change) in changes {
        let mut changed = inputs();
        change(&mut changed);
        assert!(keys.insert(changed.key()), "{what}");
        assert!(listings.insert(changed.with(|fields| fields.fields())), "{what}");
    }
}

#[test]
fn moving_bytes_between_fields_changes_the_key() {
    type Change = fn(&mut Inputs);
    let changes: &[Change] = &[
        |i| {
            (i.info.platform_version, i.info.vendor) = ("3.0v".to_owned(), "endor".to_owned());
        },
        |i| (i.info.vendor, i.info.name) = ("vendo".to_owned(), "rdevice".to_owned()),
        |i| (i.info.name, i.info.instructions) = (String::new(), "deviceavx2".to_owned()),
        |i| i.environment[0] = ("IGC_Op", "tx"),
        |i| {
            i.constants = vec![
                (3, ConstantBytes::from_slice(&[1, 2, 3])),
                (9, ConstantBytes::from_slice(&[4, 5])),
            ];
        },
    ];
    let mut keys = HashSet::from([inputs().key()]);
    for (at, change) in changes.iter().enumerate() {
        let mut changed = inputs();
        change(&mut changed);
        assert!(keys.insert(changed.key()), "change {at}");
    }
}

#[test]
fn sources_of_options_are_listed_but_are_not_part_of_the_key() {
    let mut other = Inputs { source: OptionSource::Module, ..inputs() };
    assert_eq!(other.key(), inputs().key());
    let listed = |inputs: &Inputs| {
        let fields = inputs.with(|fields| fields.fields());
        let mut named = fields.into_iter().filter(|(name, _)| name.contains("options from"));
        (named.next(), named.next())
    };
    let field = |name: &str, value: &str| Some((name.to_owned(), value.to_owned()));
    assert_eq!(listed(&inputs()), (None, None), "they come from the call");
    assert_eq!(listed(&other), (field("options from the module", "-w -D A=1"), None));
    other.source = OptionSource::Variable("KILN_LINK_OPTIONS");
    other.link_options = std::mem::take(&mut other.options);
    assert_eq!(listed(&other), (field("link options from KILN_LINK_OPTIONS", "-w -D A=1"), None));
}

#[test]
fn fields_are_listed_by_name_and_value() {
    let fields = inputs().with(|fields| fields.fields());
    let names: Vec<_> = fields.iter().map(|(name, _)| name.as_str()).collect();
    let expected = [
        "schema",
        "kind",
        "module",
        "module",
        "constant 3",
        "constant 9",
        "options",
        "backend",
        "platform",
        "platform version",
        "vendor",
        "device",
        "instructions",
        "device version",
        "driver version",
        "compiler",
        "il version",
        "IGC_Opt",
        "POCL_EXTRA_BUILD_FLAGS",
    ];
    assert_eq!(names, expected);
    assert_eq!(fields[4].1, "0x04030201");
    assert_eq!(fields[18].1, "-g");
}

/// Keys of ten typical requests. Every version of this crate must produce the same keys, unless it raises the
/// schema version.
#[test]
fn keys_match_the_golden_file() {
    type Change = fn(&mut Inputs);
    let requests: [(&str, Change); 10] = [
        ("plain", |_| {}),
        ("source", |r| r.modules = vec![Module::opencl_c("kernel void g() {}").digest()]),
        ("native", |r| {
            let module = Module::native(*b"kernel void f() {}").expect("it is not empty");
            r.modules = vec![module.digest()];
        }),
        ("linked", |r| r.modules.push(Digest([9; 32]))),
        ("options", |r| r.options = "-cl-fast-relaxed-math -D N=16".to_owned()),
        ("constant", |r| r.constants = vec![(0, ConstantBytes::from_slice(&[16, 0, 0, 0]))]),
        ("constants", |r| {
            r.constants = vec![
                (1, ConstantBytes::from_slice(&[1])),
                (7, ConstantBytes::from_slice(&1.5f64.to_le_bytes())),
            ];
        }),
        ("driver", |r| r.info.driver_version = "2.0".to_owned()),
        ("environment", |r| r.environment = vec![("IGC_OptDisable", "1")]),
        ("everything", |r| *r = inputs()),
    ];
    let mut keys = String::new();
    for (name, change) in requests {
        let mut request = Inputs {
            kind: NodeKind::Program,
            emitter: None,
            modules: vec![Module::opencl_c("kernel void f() {}").digest()],
            constants: Vec::new(),
            options: String::new(),
            link_options: String::new(),
            source: OptionSource::Call,
            replaced: Vec::new(),
            info: DeviceInfo::fake(),
            environment: Vec::new(),
        };
        change(&mut request);
        keys.push_str(&format!("{name} {}\n", request.key()));
    }
    assert_eq!(keys, include_str!("keys.golden"), "raise the schema if keys have to change");
}
