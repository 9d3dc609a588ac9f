//! Programs: the compiler's result for a module, and the binary form that can be loaded again.

use std::any::Any;
use std::collections::HashSet;
use std::str;
use std::sync::Arc;

use kiln_spirv::Parameter;

use super::codes::{code, driver_error, foreign_error, refused_error};
use super::counters::{count, uncount};
use super::scan::{self, Scan, Signature};
use super::shared::{Shared, Slot};
use crate::backend::{Kernel, Program, Source};
use crate::device::ModuleFormat;
use crate::error::{Error, ErrorKind, Result};

/// Maximum number of work-items in a work-group of the device. Kernels can have lower limits.
pub(super) const MAX_WORK_GROUP_SIZE: usize = 1024;

/// Number of which the sizes of work-groups should be multiples.
const PREFERRED_MULTIPLE: usize = 32;

/// Compiles or loads `source`.
pub(super) fn build(shared: &Arc<Shared>, source: &Source<'_>) -> Result<Arc<dyn Program>> {
    let binary = match source.format {
        ModuleFormat::OpenClC => Binary::new(Form::OpenClC, source),
        ModuleFormat::SpirV => Binary::new(Form::SpirV, source),
        ModuleFormat::Native => Ok(Binary::read(source.code)?),
    }?;
    let scan = match binary.form {
        Form::SpirV => reflect(shared, &binary.code, source.constants)?,
        Form::OpenClC => scan(&binary.code)?,
        Form::Object => {
            return Err(refused_error("error: the binary is an object, which must be linked"));
        }
    };
    Ok(Arc::new(SimulatedProgram::new(shared, binary, scan)))
}

/// Compiles or loads an object.
pub(super) fn compile(shared: &Arc<Shared>, source: &Source<'_>) -> Result<Arc<dyn Program>> {
    let binary = match source.format {
        ModuleFormat::OpenClC => Binary::new(Form::Object, source)?,
        ModuleFormat::SpirV => {
            return Err(refused_error("error: the linker does not accept SPIR-V"));
        }
        ModuleFormat::Native => Binary::read(source.code)?,
    };
    if binary.form != Form::Object {
        return Err(refused_error("error: the binary is not an object"));
    }
    let scan = Scan { signatures: Vec::new(), ..scan(&binary.code)? };
    Ok(Arc::new(SimulatedProgram::new(shared, binary, scan)))
}

/// Links objects. The text of the program is the texts of its objects.
pub(super) fn link(
    shared: &Arc<Shared>,
    objects: &[&dyn Program],
    options: &str,
) -> Result<Arc<dyn Program>> {
    check_options(options)?;
    let mut code = Vec::new();
    let mut size = 0;
    let mut kernels = HashSet::new();
    for object in objects {
        let object = (*object as &dyn Any)
            .downcast_ref::<SimulatedProgram>()
            .filter(|object| object.binary.form == Form::Object)
            .ok_or_else(|| foreign_error("object"))?;
        for Signature { name, .. } in scan(&object.binary.code)?.signatures {
            if kernels.contains(&name) {
                return Err(refused_error(format!("error: the kernel `{name}` is defined twice")));
            }
            kernels.insert(name);
        }
        code.extend_from_slice(&object.binary.code);
        code.push(b'\n');
        size += object.binary.size;
    }
    let scan = scan(&code)?;
    let binary = Binary { form: Form::OpenClC, code, size };
    Ok(Arc::new(SimulatedProgram::new(shared, binary, scan)))
}

/// Fails for the option that the simulator's compiler and linker refuse.
fn check_options(options: &str) -> Result<()> {
    if options.split_whitespace().any(|option| option == "--refuse") {
        return Err(refused_error("error: unknown option `--refuse`"));
    }
    Ok(())
}

fn scan(code: &[u8]) -> Result<Scan> {
    let text = str::from_utf8(code)
        .map_err(|error| refused_error(format!("error: the source is not UTF-8 text: {error}")))?;
    scan::scan(text).map_err(refused_error)
}

/// Returns the kernels of a SPIR-V module, or all registered kernels if it has none. The values of
/// specialization constants have no effect, but the module must have these constants, with these sizes.
fn reflect(shared: &Shared, bytes: &[u8], constants: &[(u32, Vec<u8>)]) -> Result<Scan> {
    let (_, module) = kiln_spirv::read(bytes.to_vec())
        .map_err(|error| refused_error(format!("error: {error}")))?;
    for (id, value) in constants {
        let known = module.specialization_constants.iter().find(|known| known.id == *id);
        if known.is_none_or(|known| known.default.len() != value.len()) {
            return Err(driver_error(
                -71,
                "CL_INVALID_SPEC_ID",
                format!("the module has no specialization constant {id} of {} bytes", value.len()),
            ));
        }
    }
    let signature = |name: String| {
        let parameters = module.parameters(&name).map(<[Parameter]>::to_vec);
        Signature { name, parameters }
    };
    let names = if module.kernels.is_empty() {
        shared.registered_kernels()
    } else {
        module.kernels.clone()
    };
    let signatures = names.into_iter().map(signature).collect();
    Ok(Scan { signatures, ..Scan::default() })
}

/// Native form of a program: the module itself behind a header with a checksum, so that damage is detected as
/// by a real loader.
struct Binary {
    form: Form,
    code: Vec<u8>,
    /// Minimum size of the whole in bytes. The space after the code is filled with zeros.
    size: usize,
}

/// Form of a binary's code, and the byte that represents it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Form {
    OpenClC = b'C',
    SpirV = b'S',
    /// OpenCL C that is not linked yet.
    Object = b'O',
}

impl Binary {
    const MAGIC: &[u8] = b"KILN-SIM";
    const CHECKSUM: usize = blake3::OUT_LEN;
    /// Size of the header: magic, checksum of everything that follows, form, length of the code.
    const HEADER: usize = Self::MAGIC.len() + Self::CHECKSUM + 1 + size_of::<u64>();

    fn new(form: Form, source: &Source<'_>) -> Result<Self> {
        check_options(source.options)?;
        Ok(Self { form, code: source.code.to_vec(), size: 0 })
    }

    fn len(&self) -> usize {
        self.size.max(Self::HEADER + self.code.len())
    }

    fn write(&self) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(self.len()).map_err(|error| {
            Error::new(ErrorKind::OutOfResources, "the host cannot allocate memory for the binary")
                .with_code(code(-6, "CL_OUT_OF_HOST_MEMORY"))
                .with_source(error)
        })?;
        bytes.extend_from_slice(Self::MAGIC);
        bytes.extend_from_slice(&[0; Self::CHECKSUM]);
        bytes.push(self.form as u8);
        bytes.extend_from_slice(&(self.code.len() as u64).to_le_bytes());
        bytes.extend_from_slice(&self.code);
        bytes.resize(self.len(), 0);
        let (header, rest) = bytes.split_at_mut(Self::MAGIC.len() + Self::CHECKSUM);
        header[Self::MAGIC.len()..].copy_from_slice(blake3::hash(rest).as_bytes());
        Ok(bytes)
    }

    fn read(bytes: &[u8]) -> Result<Self> {
        Self::parse(bytes).ok_or_else(|| {
            refused_error("error: the binary is damaged or was made for another device")
        })
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let (checksum, rest) = bytes.strip_prefix(Self::MAGIC)?.split_first_chunk()?;
        if blake3::hash(rest) != *checksum {
            return None;
        }
        let (&format, rest) = rest.split_first()?;
        let (length, rest) = rest.split_first_chunk()?;
        let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
        Some(Self {
            form: [Form::OpenClC, Form::SpirV, Form::Object]
                .into_iter()
                .find(|form| *form as u8 == format)?,
            code: rest.get(..length)?.to_vec(),
            size: bytes.len(),
        })
    }
}

struct SimulatedProgram {
    binary: Binary,
    build_log: String,
    kernels: Vec<Arc<dyn Kernel>>,
}

impl SimulatedProgram {
    fn new(shared: &Arc<Shared>, mut binary: Binary, scan: Scan) -> Self {
        binary.size = binary.size.max(scan.binary_size);
        let alive = Arc::new(LiveProgram::new(shared));
        let kernels = scan.signatures.into_iter().map(|signature| {
            let code = Code { slot: shared.slot(&signature.name), signature, alive: alive.clone() };
            Arc::new(SimulatedKernel(Arc::new(code))) as Arc<dyn Kernel>
        });
        Self { binary, build_log: scan.log, kernels: kernels.collect() }
    }
}

impl Program for SimulatedProgram {
    fn kernels(&self) -> &[Arc<dyn Kernel>] {
        &self.kernels
    }

    fn build_log(&self) -> &str {
        &self.build_log
    }

    fn binary_size(&self) -> Option<usize> {
        Some(self.binary.len())
    }

    fn binary(&self) -> Result<Vec<u8>> {
        self.binary.write()
    }
}

/// Guard that counts a program for as long as any part of it is in use.
struct LiveProgram(Arc<Shared>);

impl LiveProgram {
    fn new(shared: &Arc<Shared>) -> Self {
        count(&shared.counters.live_programs);
        Self(shared.clone())
    }
}

impl Drop for LiveProgram {
    fn drop(&mut self) {
        uncount(&self.0.counters.live_programs);
    }
}

struct SimulatedKernel(Arc<Code>);

/// Part of a kernel that its launches keep alive.
pub(super) struct Code {
    pub(super) signature: Signature,
    pub(super) slot: Arc<Slot>,
    alive: Arc<LiveProgram>,
}

impl Code {
    /// Returns the code of `kernel`. Fails if it belongs to another device.
    pub(super) fn of<'a>(kernel: &'a dyn Kernel, shared: &Arc<Shared>) -> Result<&'a Arc<Self>> {
        (kernel as &dyn Any)
            .downcast_ref::<SimulatedKernel>()
            .map(|kernel| &kernel.0)
            .filter(|code| Arc::ptr_eq(&code.alive.0, shared))
            .ok_or_else(|| foreign_error("kernel"))
    }
}

impl Kernel for SimulatedKernel {
    fn name(&self) -> &str {
        &self.0.signature.name
    }

    fn parameters(&self) -> &[Parameter] {
        self.0.signature.parameters.as_deref().unwrap_or_default()
    }

    fn max_work_group_size(&self) -> Option<usize> {
        Some(self.0.slot.max_work_group_size(MAX_WORK_GROUP_SIZE))
    }

    fn preferred_multiple(&self) -> Option<usize> {
        Some(PREFERRED_MULTIPLE)
    }

    fn local_memory(&self) -> u64 {
        0
    }

    fn private_memory(&self) -> Option<u64> {
        Some(0)
    }
}
