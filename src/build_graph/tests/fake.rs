//! A device whose behaviour is controlled by the text of its programs and by a script.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex};

use kiln_spirv::Parameter;

use crate::backend::{self, Source};
use crate::device::{DeviceInfo, ImageShape};
use crate::error::{Error, ErrorKind, Result};

/// Script and log of the fake device. Programs are as large as their source text.
#[derive(Default)]
pub(super) struct Script {
    builds: AtomicUsize,
    pub(super) built: Mutex<Vec<String>>,
    /// Number of existing programs.
    alive: AtomicUsize,
    /// Number of programs that existed when the last build began.
    pub(super) alive_before: AtomicUsize,
    /// Number of further builds that run out of resources.
    pub(super) exhausted: AtomicUsize,
    /// Number of further times that the device fails to open.
    pub(super) unopenable: AtomicUsize,
    /// Whether builds wait.
    closed: Mutex<bool>,
    opened: Condvar,
}

impl Script {
    /// Makes all further builds wait.
    pub(super) fn close(&self) {
        *self.closed.lock().expect("not poisoned") = true;
    }

    /// Lets all waiting and later builds continue.
    pub(super) fn open(&self) {
        *self.closed.lock().expect("not poisoned") = false;
        self.opened.notify_all();
    }

    pub(super) fn builds(&self) -> usize {
        self.builds.load(SeqCst)
    }

    pub(super) fn alive(&self) -> usize {
        self.alive.load(SeqCst)
    }
}

/// Decrements `count`. Returns `false` if it was zero.
fn take_one(count: &AtomicUsize) -> bool {
    count.fetch_update(SeqCst, SeqCst, |remaining| remaining.checked_sub(1)).is_ok()
}

pub(super) struct FakeAdapter(pub(super) Arc<DeviceInfo>, pub(super) Arc<Script>);

struct FakeDevice(Arc<Script>);

struct FakeProgram {
    script: Arc<Script>,
    binary: Vec<u8>,
    kernels: Vec<Arc<dyn backend::Kernel>>,
}

struct FakeKernel(Vec<Parameter>);

impl backend::Adapter for FakeAdapter {
    fn info(&self) -> &Arc<DeviceInfo> {
        &self.0
    }

    fn open(&self) -> Result<Arc<dyn backend::Device>> {
        if take_one(&self.1.unopenable) {
            return Err(Error::new(ErrorKind::Driver, "no context today"));
        }
        Ok(Arc::new(FakeDevice(Arc::clone(&self.1))))
    }
}

impl backend::Device for FakeDevice {
    fn build(&self, source: &Source<'_>) -> Result<Arc<dyn backend::Program>> {
        let script = &self.0;
        script.builds.fetch_add(1, SeqCst);
        script.alive_before.store(script.alive(), SeqCst);
        let text = String::from_utf8_lossy(source.code).into_owned();
        script.built.lock().expect("not poisoned").push(format!("{text}|{}", source.options));
        let closed = script.closed.lock().expect("not poisoned");
        drop(script.opened.wait_while(closed, |closed| *closed).expect("not poisoned"));
        if take_one(&script.exhausted) {
            return Err(Error::new(ErrorKind::OutOfResources, "the device is full"));
        }
        match text.as_str() {
            "refuse" => Err(Error::new(ErrorKind::BuildFailed, "no").with_log("1:1: error: no")),
            "lose" => Err(Error::new(ErrorKind::DeviceLost, "gone")),
            "panic" => panic!("the compiler fell over"),
            _ => {
                script.alive.fetch_add(1, SeqCst);
                let kernel = FakeKernel(vec![Parameter::default()]);
                Ok(Arc::new(FakeProgram {
                    script: Arc::clone(script),
                    binary: source.code.to_vec(),
                    kernels: vec![Arc::new(kernel)],
                }))
            }
        }
    }

    fn compile(&self, _: &Source<'_>) -> Result<Arc<dyn backend::Program>> {
        Err(Error::new(ErrorKind::Driver, "has no linker"))
    }

    fn link(&self, _: &[&dyn backend::Program], _: &str) -> Result<Arc<dyn backend::Program>> {
        Err(Error::new(ErrorKind::Driver, "has no linker"))
    }

    fn allocate(&self, _: usize) -> Result<Arc<dyn backend::Memory>> {
        Err(Error::new(ErrorKind::Driver, "has no memory"))
    }

    fn allocate_on_host(&self, _: usize) -> Result<Arc<dyn backend::Memory>> {
        Err(Error::new(ErrorKind::Driver, "has no memory"))
    }

    fn create_image(&self, _: &ImageShape) -> Result<Arc<dyn backend::Memory>> {
        Err(Error::new(ErrorKind::Driver, "has no images"))
    }

    fn create_native_queue(&self, _: bool) -> Result<Box<dyn backend::NativeQueue>> {
        Err(Error::new(ErrorKind::Driver, "has no native queues"))
    }
}

impl backend::Program for FakeProgram {
    fn kernels(&self) -> &[Arc<dyn backend::Kernel>] {
        &self.kernels
    }

    fn build_log(&self) -> &str {
        "warning: fake"
    }

    fn binary_size(&self) -> Option<usize> {
        Some(self.binary.len())
    }

    fn binary(&self) -> Result<Vec<u8>> {
        Ok(self.binary.clone())
    }
}

impl Drop for FakeProgram {
    fn drop(&mut self) {
        self.script.alive.fetch_sub(1, SeqCst);
    }
}

impl backend::Kernel for FakeKernel {
    fn name(&self) -> &str {
        "main"
    }

    fn parameters(&self) -> &[Parameter] {
        &self.0
    }

    fn max_work_group_size(&self) -> Option<usize> {
        None
    }

    fn local_memory(&self) -> u64 {
        0
    }
}
