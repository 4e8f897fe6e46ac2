//! Threads that share the work of one operation.
//!
//! Apart from any arithmetic. Written for the case where the machine has other work too: a worker that the system
//! has put aside never holds up an operation that others can finish, since workers join an open job and nobody
//! waits for one that has not joined; and nobody spins for more than some microseconds. Must not know: what is
//! computed.

use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crate::DeviceError;

/// Pauses that a thread makes before it sleeps: about 20 microseconds where one takes some 140 cycles (Intel
/// since Skylake). An operation of a decode step takes that long, so that within a step workers stay awake. A
/// count and not a time, since a core has no clock.
const SPINS_MAX: usize = 400;
/// Pauses between two looks.
const SPINS_PER_LOOK: usize = 8;
/// Set in the state while a job may be joined; the bits below count the workers inside.
const OPEN: usize = 1 << (usize::BITS - 1);

/// Workers and the caller. Dropping it ends the workers.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// Held by the caller whose job is running.
    turn: Mutex<()>,
}

struct Shared {
    state: AtomicUsize,
    next: AtomicUsize,
    job: UnsafeCell<Job>,
    panicked: AtomicBool,
    stop: AtomicBool,
    sleepers: AtomicUsize,
    asleep: Mutex<()>,
    wake: Condvar,
    left: Condvar,
}

/// A borrowed closure whose lifetime the pool keeps by waiting, and the number of its tasks.
#[derive(Clone, Copy)]
struct Job {
    run: Option<*const (dyn Fn(usize) + Sync)>,
    tasks: usize,
}

// SAFETY: `job` is written only by the caller that holds `turn` while the state is closed and no worker is inside,
// and read only by workers that joined while it was open; the state's acquire and release order the two.
unsafe impl Sync for Shared {}
// SAFETY: the pointer in `job` is used only between opening and the end of `Pool::run`, which owns the closure's
// borrow, and the closure is Sync.
unsafe impl Send for Shared {}

impl Pool {
    /// Makes a pool of `threads` threads, the calling one included.
    pub fn new(threads: usize) -> Result<Self, DeviceError> {
        let shared = Arc::new(Shared {
            state: AtomicUsize::new(0),
            next: AtomicUsize::new(0),
            job: UnsafeCell::new(Job { run: None, tasks: 0 }),
            panicked: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            sleepers: AtomicUsize::new(0),
            asleep: Mutex::new(()),
            wake: Condvar::new(),
            left: Condvar::new(),
        });
        let mut pool = Pool { shared, workers: Vec::new(), turn: Mutex::new(()) };
        for index in 1..threads.max(1) {
            let shared = Arc::clone(&pool.shared);
            let builder = std::thread::Builder::new().name(format!("kernel-{index}"));
            pool.workers.push(builder.spawn(move || shared.work()).map_err(DeviceError::Thread)?);
        }
        Ok(pool)
    }

    /// Threads, the calling one included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `run` once for each task in 0..tasks, on any of the threads, and returns when all have been done.
    ///
    /// # Panics
    /// If `run` panicked on any thread.
    pub fn run(&self, tasks: usize, run: &(dyn Fn(usize) + Sync)) {
        if tasks <= 1 || self.workers.is_empty() {
            (0..tasks).for_each(run);
            return;
        }
        let turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let shared = &*self.shared;
        // SAFETY: only the lifetime is erased; `close` below returns after the last worker has left the job.
        let erased: *const (dyn Fn(usize) + Sync) = unsafe { std::mem::transmute(run) };
        // SAFETY: `turn` is held and the state is closed with nobody inside, so nobody else looks at `job`.
        unsafe { *shared.job.get() = Job { run: Some(erased), tasks } };
        shared.next.store(0, Ordering::Relaxed);
        shared.state.store(OPEN, Ordering::SeqCst);
        if shared.sleepers.load(Ordering::SeqCst) > 0 {
            drop(shared.lock());
            shared.wake.notify_all();
        }
        let guard = Close { shared };
        take_tasks(shared, tasks, run);
        drop(guard);
        drop(turn);
        assert!(!shared.panicked.swap(false, Ordering::Relaxed), "a task of a parallel operation panicked");
    }
}

/// Closes the job when the caller is done with its share, also when that share panicked.
struct Close<'a> {
    shared: &'a Shared,
}

impl Drop for Close<'_> {
    fn drop(&mut self) {
        self.shared.state.fetch_and(!OPEN, Ordering::SeqCst);
        let mut spun = 0;
        while self.shared.state.load(Ordering::Acquire) != 0 {
            if spin(&mut spun) {
                let mut held = self.shared.lock();
                while self.shared.state.load(Ordering::Acquire) != 0 {
                    held = self.shared.left.wait(held).unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        drop(self.shared.lock());
        self.shared.wake.notify_all();
        for worker in self.workers.drain(..) {
            // A panic inside a task was caught and reported to the caller of that task.
            let _ = worker.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, ()> {
        self.asleep.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        let mut spun = 0;
        while !self.stop.load(Ordering::Relaxed) {
            if self.join() {
                spun = 0;
            } else if spin(&mut spun) {
                self.sleep();
                spun = 0;
            }
        }
    }

    /// Takes part in the open job, if there is one with tasks left.
    fn join(&self) -> bool {
        let state = self.state.load(Ordering::Relaxed);
        if state & OPEN == 0 {
            return false;
        }
        if self.state.compare_exchange(state, state + 1, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            return true;
        }
        // SAFETY: this worker is inside: the job was published before the state opened, and the caller does not
        // return, nor write it again, before the count is back at zero.
        let job = unsafe { *self.job.get() };
        let took = match job.run {
            // SAFETY: as above, the closure is borrowed by a caller that waits for us.
            Some(run) => {
                let run = unsafe { &*run };
                let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                    take_tasks(self, job.tasks, run)
                }));
                if done.is_err() {
                    self.panicked.store(true, Ordering::Relaxed);
                }
                done.unwrap_or(0)
            }
            None => 0,
        };
        if self.state.fetch_sub(1, Ordering::AcqRel) == 1 {
            // The caller may be asleep, waiting for the last one out.
            drop(self.lock());
            self.left.notify_one();
        }
        took > 0
    }

    fn sleep(&self) {
        let mut held = self.lock();
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        while self.state.load(Ordering::SeqCst) & OPEN == 0 && !self.stop.load(Ordering::SeqCst) {
            held = self.wake.wait(held).unwrap_or_else(PoisonError::into_inner);
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }
}

fn take_tasks(shared: &Shared, tasks: usize, run: &(dyn Fn(usize) + Sync)) -> usize {
    let mut took = 0;
    loop {
        let task = shared.next.fetch_add(1, Ordering::Relaxed);
        if task >= tasks {
            return took;
        }
        run(task);
        took += 1;
    }
}

/// Spins a little. True once it has been long enough.
fn spin(spun: &mut usize) -> bool {
    for _ in 0..SPINS_PER_LOOK {
        std::hint::spin_loop();
    }
    *spun += SPINS_PER_LOOK;
    *spun > SPINS_MAX
}

/// A slice whose parts several threads write. Whoever takes a part guarantees that no other part overlaps it.
pub struct Disjoint<'a, T> {
    start: *mut T,
    length: usize,
    borrowed: PhantomData<&'a mut [T]>,
}

// SAFETY: parts are handed out by `part`, whose callers guarantee that they do not overlap; a part may be used on
// another thread, as `T: Send` allows.
unsafe impl<T: Send> Sync for Disjoint<'_, T> {}

impl<'a, T> Disjoint<'a, T> {
    pub fn new(values: &'a mut [T]) -> Self {
        Disjoint { start: values.as_mut_ptr(), length: values.len(), borrowed: PhantomData }
    }

    /// # Safety
    /// No two parts in use at the same time may overlap.
    #[expect(clippy::mut_from_ref, reason = "the point of the type; callers guarantee disjointness")]
    pub unsafe fn part(&self, at: usize, length: usize) -> &mut [T] {
        assert!(at <= self.length && length <= self.length - at, "a part reaches past the end");
        // SAFETY: in bounds by the assertion, disjoint by the caller's promise, borrowed for as long as `self`.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(at), length) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    #[test]
    fn every_task_runs_once() {
        for threads in [1, 2, 5] {
            let pool = Pool::new(threads).unwrap();
            assert_eq!(pool.threads(), threads);
            for tasks in [0, 1, 2, 3, 64, 1000] {
                for _ in 0..50 {
                    let counts: Vec<AtomicU32> = (0..tasks).map(|_| AtomicU32::new(0)).collect();
                    pool.run(tasks, &|task| {
                        counts[task].fetch_add(1, Ordering::Relaxed);
                    });
                    assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 1));
                }
            }
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_goes_on() {
        let pool = Pool::new(3).unwrap();
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            pool.run(100, &|task| assert!(task != 57, "planted"));
        }));
        assert!(caught.is_err());
        let sum = AtomicU32::new(0);
        pool.run(10, &|_| {
            sum.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(sum.load(Ordering::Relaxed), 10);
    }
}
