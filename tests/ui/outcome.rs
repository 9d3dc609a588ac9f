fn task(queue: &kiln::Queue) -> kiln::Result<kiln::Event> {
    queue.host_task(async { 3 })
}

fn main() {}
