//! Arguments of `kiln warm` and `kiln manifest`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

#[derive(Args)]
pub(crate) struct Warm {
    /// The manifest
    pub(crate) file: PathBuf,

    /// Build only for this device: an API, a kind (gpu, cpu, accelerator), a number from `kiln devices`, a part
    /// of its name or of its platform's, or several of these joined by colons. Can be given several times; by
    /// default, programs are built for all devices
    #[arg(long, value_name = "SELECTOR")]
    pub(crate) device: Vec<String>,

    /// Only list what would be compiled; compile and store nothing
    #[arg(long)]
    pub(crate) check: bool,

    /// Store the programs as those of the device that the manifest states, though the one device of --device
    /// builds them: for applications that set `CacheConfig::device_identity`
    #[arg(long)]
    pub(crate) recorded_identity: bool,
}

#[derive(Subcommand)]
pub(crate) enum ManifestCommand {
    /// List the entries, in the order in which they are built
    ///
    /// With --json, a list of objects: entry, kind (program, object, SPIR-V or choice), key, device, runs (number
    /// of recorded runs that used it), uses and last_used (start of the last such run, in seconds since 1970).
    Show {
        /// The manifest
        file: PathBuf,
    },
    /// Write one manifest with the entries of several
    Merge {
        /// The manifests
        #[arg(required = true)]
        files: Vec<PathBuf>,
        /// The file for the result, which may be one of the manifests
        #[arg(short, long, value_name = "FILE")]
        output: PathBuf,
    },
    /// Remove the entries that are used too little, or not any more
    ///
    /// Entries are kept if they meet all given conditions. Do not edit a manifest in place while a process
    /// records into it: the process would go on writing to the old file.
    #[command(override_usage = "kiln manifest prune [OPTIONS] <CONDITION>.. <FILE>")]
    Prune {
        /// The manifest
        file: PathBuf,
        /// The file for the result; by default, the manifest itself
        #[arg(short, long, value_name = "FILE")]
        output: Option<PathBuf>,
        #[command(flatten)]
        keep: Keep,
    },
}

/// Conditions for entries that are kept, of which at least one is given.
#[derive(Args)]
#[group(required = true, multiple = true)]
pub(crate) struct Keep {
    /// Keep entries that at least so many recorded runs used
    #[arg(long, value_name = "RUNS")]
    pub(crate) min_runs: Option<usize>,

    /// Keep entries that were requested at least so many times, in all runs together
    #[arg(long, value_name = "USES")]
    pub(crate) min_uses: Option<u64>,

    /// Keep entries that a run used which started in the last so many days
    #[arg(long, value_name = "DAYS")]
    pub(crate) max_age: Option<u64>,

    /// Keep entries for devices with this text in their name
    #[arg(long, value_name = "TEXT")]
    pub(crate) device: Option<String>,
}
