//! The store on disk: what is kept, evicted and repaired, on one machine with many processes.

mod async_files;
mod churn;
mod cold_launches;
mod damage;
mod eviction;
mod faults;
mod files;
mod from_outside;
#[cfg(target_os = "linux")]
mod hanging_disk;
mod held_locks;
mod limits;
mod processes;
mod programs;
mod settings;
#[cfg(target_os = "linux")]
mod slow_disk;
mod storage;
