//! Sources of kernels that `scripts/fetch-kernels` downloads, and how their programs are built.

use std::fs;
use std::path::{Path, PathBuf};

use support::ROOT;

/// Source of programs: a folder below `target/foreign-kernels`.
pub(super) struct Source {
    pub(super) name: &'static str,
    /// Beginning of the paths of the files that are programs.
    within: &'static str,
    /// Distance between the files that are used, of all that are programs, in alphabetic order.
    step: usize,
    /// Options of all programs. `FOLDER` stands for the folder.
    options: &'static str,
    /// Text before each program.
    prelude: &'static str,
    /// Files that are built as one text with others before them, as the package does.
    joined: &'static [(&'static str, &'static [&'static str])],
    /// Minimum numbers of launches that are proven, guarded and executed if each kernel is launched twice.
    pub(super) minimum: [u64; 3],
}

/// Program of a source.
pub(super) struct Program {
    /// Path of the file in the folder.
    pub(super) name: String,
    pub(super) text: String,
    pub(super) options: String,
}

pub(super) const SOURCES: [Source; 7] = [
    Source { name: "piglit", minimum: [145, 56, 200], ..PLAIN },
    Source {
        name: "pocl",
        options: "-I FOLDER/tests/kernel",
        // PoCL defines these.
        prelude: "#define _CL_NOINLINE __attribute__((noinline))\n\
                  #define _CL_OVERLOADABLE __attribute__((overloadable))\n",
        minimum: [5, 1, 5],
        ..PLAIN
    },
    Source { name: "darktable", options: "-I FOLDER", minimum: [75, 120, 200], ..PLAIN },
    Source {
        name: "hashcat",
        within: "OpenCL/m",
        step: 120,
        options: "-I FOLDER",
        prelude: HASHCAT,
        minimum: [1, 1, 1],
        ..PLAIN
    },
    Source {
        name: "silx",
        options: "-I FOLDER -DWORKGROUP_SIZE=128 -DNIMAGE=256 -DNB_COLOR=1 -DIMAGE_WIDTH=16 -DDTYPE=float \
                  -DIDX_DTYPE=int -DIMAGE_DIMS=2 -DFILTER_DIMS=2 -DUSED_CONV_MODE=0",
        joined: &[
            ("medfilt.cl", &["preprocess.cl", "bitonic.cl"]),
            ("statistics.cl", &["doubleword.cl"]),
            ("sift/descriptor_cpu.cl", SIFT),
            ("sift/descriptor_gpu1.cl", SIFT),
            ("sift/descriptor_gpu2.cl", SIFT),
            ("sift/algebra.cl", SIFT),
            ("sift/image.cl", SIFT),
            ("sift/memset.cl", SIFT),
            ("sift/interpolation.cl", SIFT),
            ("sift/matching_cpu.cl", SIFT),
            ("sift/matching_gpu.cl", SIFT),
            ("sift/orientation_cpu.cl", SIFT),
            ("sift/orientation_gpu.cl", SIFT),
        ],
        minimum: [20, 60, 80],
        ..PLAIN
    },
    Source {
        name: "pyfai",
        options: "-I FOLDER -DBINS=16 -DNBINS=16 -DNIMAGE=256 -DNLUT=4 -DON_CPU=1 -DPOS_SIZE=16 -DSIZE=256 \
                  -DWORKGROUP_SIZE=128 -DEPS=1e-6f",
        joined: &[
            ("medfilt.cl", PYFAI_MEDIAN),
            ("ocl_azim_CSR.cl", PYFAI),
            ("ocl_azim_LUT.cl", PYFAI),
            ("ocl_histo.cl", PYFAI),
            ("peakfinder.cl", PYFAI_PEAKS),
            ("sigma_clip.cl", &["../silx/doubleword.cl", "bitonic.cl", "separate.cl"]),
            (
                "sparsify.cl",
                &["../silx/doubleword.cl", "preprocess.cl", "memset.cl", "ocl_azim_CSR.cl"],
            ),
        ],
        minimum: [70, 80, 150],
        ..PLAIN
    },
    Source {
        name: "gputools",
        options: "-I FOLDER -DDTYPE=float -DTYPENAME=float -DREAD_IMAGE=read_imagef \
                  -DSAMPLER_FILTER=CLK_FILTER_LINEAR -DSAMPLER_ADDRESS=CLK_ADDRESS_CLAMP \
                  -DADDRESSMODE=CLK_ADDRESS_CLAMP_TO_EDGE -DFS=2 -DBS=2",
        minimum: [30, 18, 48],
        ..PLAIN
    },
];

/// Source whose files are programs as they are.
const PLAIN: Source = Source {
    name: "",
    within: "",
    step: 1,
    options: "",
    prelude: "",
    joined: &[],
    minimum: [0; 3],
};

const SIFT: &[&str] = &["sift/sift.cl"];

const PYFAI: &[&str] = &["../silx/doubleword.cl", "preprocess.cl", "memset.cl"];

const PYFAI_PEAKS: &[&str] =
    &["../silx/doubleword.cl", "preprocess.cl", "memset.cl", "ocl_azim_CSR.cl", "sparsify.cl"];

const PYFAI_MEDIAN: &[&str] = &[
    "../silx/doubleword.cl",
    "preprocess.cl",
    "memset.cl",
    "ocl_azim_CSR.cl",
    "collective/reduction.cl",
    "collective/scan.cl",
    "collective/comb_sort.cl",
];

/// Definitions that hashcat passes as options, of a processor with PoCL.
const HASHCAT: &str = "
#define KERNEL_STATIC
#define INCLUDE_PATH OpenCL
#define XM2S(x) #x
#define M2S(x) XM2S(x)
#define LOCAL_MEM_TYPE 2
#define VENDOR_ID 64
#define CUDA_ARCH 0
#define HAS_VPERM 0
#define HAS_VADD3 0
#define HAS_VBFE 0
#define HAS_BFE 0
#define HAS_LOP3 0
#define HAS_MOV64 0
#define HAS_PRMT 0
#define VECT_SIZE 1
#define DEVICE_TYPE 2
#define DGST_R0 0
#define DGST_R1 3
#define DGST_R2 2
#define DGST_R3 1
#define DGST_ELEM 4
#define KERN_TYPE 0
#define ATTACK_EXEC 11
#define ATTACK_KERN 0
#define ATTACK_MODE 0
#define FIXED_LOCAL_SIZE 64
";

impl Source {
    pub(super) fn folder(&self) -> PathBuf {
        Path::new(ROOT).join("target/foreign-kernels").join(self.name)
    }

    /// Returns the paths of the programs in the folder, in alphabetic order. Empty if there is no folder.
    pub(super) fn files(&self) -> Vec<String> {
        let mut files = Vec::new();
        find(&self.folder(), "", &mut files);
        files.retain(|file| file.starts_with(self.within));
        files.sort();
        files.into_iter().step_by(self.step).collect()
    }

    pub(super) fn program(&self, file: &str) -> Program {
        let folder = self.folder();
        let joined = self.joined.iter().find(|(name, _)| *name == file);
        let before = joined.map_or(&[][..], |(_, before)| before);
        let mut text = self.prelude.to_owned();
        for file in before.iter().chain([&file]) {
            let bytes = fs::read(folder.join(file)).expect("it was downloaded");
            // The packages drop these lines, whose file is for editors.
            for line in String::from_utf8_lossy(&bytes)
                .lines()
                .filter(|line| !line.contains("for_eclipse.h"))
            {
                text += line;
                text.push('\n');
            }
        }
        let options = self.options.replace("FOLDER", &folder.to_string_lossy());
        Program { name: file.to_owned(), text, options }
    }
}

/// Adds the files of OpenCL C below a folder to a list, with their paths.
fn find(folder: &Path, path: &str, files: &mut Vec<String>) {
    for entry in fs::read_dir(folder.join(path)).into_iter().flatten() {
        let entry = entry.expect("the folder can be read");
        let name = Path::new(path).join(entry.file_name());
        let name = name.to_str().expect("the names of files are UTF-8");
        if entry.file_type().expect("it is known").is_dir() {
            find(folder, name, files);
        } else if Path::new(name).extension().is_some_and(|extension| extension == "cl") {
            files.push(name.to_owned());
        }
    }
}
