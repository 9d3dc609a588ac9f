//! `kiln build --object`: compiles a file to an object.

use std::path::Path;

use kiln::{CacheConfig, Module};
use serde::Serialize;

use crate::args::Build;
use crate::file;
use crate::output::{Failure, Outcome, Output, Result};
use crate::progress::while_building;
use crate::request::{Problem, Setup};

#[derive(Serialize)]
struct Line {
    file: String,
    output: String,
    device: String,
    driver: String,
    key: String,
    origin: String,
    /// Size of the object's file.
    bytes: u64,
    exports: Vec<String>,
    imports: Vec<String>,
}

/// Compiles the one file of a build to an object, and writes it.
pub(crate) async fn run(
    out: &mut Output,
    build: &Build,
    output: &Path,
    config: CacheConfig,
) -> Result {
    let [file] = &build.files[..] else {
        return Err(Failure::usage("--object makes an object of one file; run it for each file"));
    };
    let setup = Setup::new(&build.settings, config, &[file]).await?;
    let failed = |problem: Problem| {
        let log = problem.log.map(|log| format!("\n{}", log.trim_end())).unwrap_or_default();
        Failure::failed(format_args!("{}: {}{log}", file.display(), problem.message))
    };
    let (_, request) = setup.request(file).await.map_err(failed)?;
    let object = while_building(&setup.rt, request.object()).await;
    let object = object.map_err(|error| failed(error.into()))?;
    setup.rt.drain().await;
    let module = Module::native(object.bytes())?;
    file::write_output(output, object.bytes()).map_err(|error| {
        Failure::failed(format_args!("cannot write {}: {error}", output.display()))
    })?;
    let names = |names: &mut dyn Iterator<Item = &str>| names.map(str::to_owned).collect();
    let line = Line {
        file: file.display().to_string(),
        output: output.display().to_string(),
        device: object.device().name.clone(),
        driver: object.device().driver_version.clone(),
        key: object.key().to_string(),
        origin: object.origin().to_string(),
        bytes: object.bytes().len() as u64,
        exports: names(&mut module.exports()),
        imports: names(&mut module.imports()),
    };
    if out.is_json() {
        out.value(&line)?;
    } else {
        out.native_code(line.bytes, &line.output, &line.device, &line.driver)?;
        for (what, names) in [("exports", &line.exports), ("imports", &line.imports)] {
            if !names.is_empty() {
                out.line(format_args!("{what} {}", names.join(", ")))?;
            }
        }
    }
    Ok(Outcome::Success)
}
