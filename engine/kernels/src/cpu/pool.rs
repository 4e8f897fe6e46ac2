//! Threads that share the work of one operation.
//!
//! Apart from any arithmetic. Written for the case where the machine has other work too: workers join an open job
//! and nobody waits for one that has not joined; nobody spins for more than some microseconds; and where the system
//! puts aside a worker in the middle of its task, so that the caller has to wait for it, the caller goes on alone
//! for a while. Tasks are taken one by one from a counter: a thread that is slower takes fewer. Must not know: what
//! is computed.

use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::DeviceError;

/// Pauses that a thread makes before it sleeps: about 20 microseconds where one takes some 140 cycles (Intel
/// since Skylake). An operation of a decode step takes that long, so that within a step workers stay awake. A
/// count and not a time, since a core has no clock.
const SPINS_MAX: usize = 400;
/// Pauses between two looks.
const SPINS_PER_LOOK: usize = 8;

/// A worker that keeps the caller waiting for so long was put aside by the system: tasks are made to take well
/// under half of it, and a process that shares the core gets some milliseconds.
const STALL: Duration = Duration::from_millis(1);
/// Tasks that the caller does alone after a stall, and after stalls that follow each other, doubling: some
/// milliseconds to some tenths of a second, in which a stall costs little.
const ALONE_MIN: usize = 512;
const ALONE_MAX: usize = 16 * 1024;
/// Shared tasks without a stall after which the next one counts as the first.
const CALM: usize = 2048;

/// The state: OPEN while a job may be joined, then the job's number in 31 bits, then the workers inside in 32.
const OPEN: u64 = 1 << 63;
const NUMBER_ONE: u64 = 1 << 32;
const INSIDE: u64 = NUMBER_ONE - 1;

/// Workers and the caller. Dropping it ends the workers.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// Held by the caller whose job is running.
    turn: Mutex<Turn>,
}

/// What one caller leaves to the next.
#[derive(Default)]
struct Turn {
    /// Tasks still to be done without the workers.
    alone: usize,
    /// How many it was after the last stall.
    backoff: usize,
    /// Shared tasks since the last stall.
    calm: usize,
}

struct Shared {
    state: AtomicU64,
    next: AtomicUsize,
    job: UnsafeCell<Job>,
    panicked: AtomicBool,
    stop: AtomicBool,
    sleepers: AtomicUsize,
    /// Times that a caller has waited for as long as `STALL`.
    stalls: AtomicUsize,
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
            state: AtomicU64::new(0),
            next: AtomicUsize::new(0),
            job: UnsafeCell::new(Job { run: None, tasks: 0 }),
            panicked: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            sleepers: AtomicUsize::new(0),
            stalls: AtomicUsize::new(0),
            asleep: Mutex::new(()),
            wake: Condvar::new(),
            left: Condvar::new(),
        });
        let mut pool = Pool { shared, workers: Vec::new(), turn: Mutex::default() };
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

    /// Calls `run` once for each task in 0..tasks, on any of the threads, and returns when all have been done. A
    /// task should take some microseconds to some tenths of a millisecond.
    ///
    /// # Panics
    /// If `run` panicked on any thread.
    pub fn run(&self, tasks: usize, run: &(dyn Fn(usize) + Sync)) {
        if tasks <= 1 || self.workers.is_empty() {
            (0..tasks).for_each(run);
            return;
        }
        let mut turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        if turn.alone > 0 {
            turn.alone = turn.alone.saturating_sub(tasks);
            drop(turn);
            (0..tasks).for_each(run);
            return;
        }
        let shared = &*self.shared;
        // SAFETY: only the lifetime is erased; `Close` below returns after the last worker has left the job.
        let erased: *const (dyn Fn(usize) + Sync) = unsafe { std::mem::transmute(run) };
        // SAFETY: `turn` is held and the state is closed with nobody inside, so nobody else looks at `job`.
        unsafe { *shared.job.get() = Job { run: Some(erased), tasks } };
        shared.next.store(0, Ordering::Relaxed);
        shared.open();
        let guard = Close { shared, turn: &mut turn, tasks };
        take_tasks(shared, tasks, run);
        drop(guard);
        drop(turn);
        assert!(!shared.panicked.swap(false, Ordering::Relaxed), "a task of a parallel operation panicked");
    }
}

/// Closes the job when the caller is done with its share, also when that share panicked.
struct Close<'a> {
    shared: &'a Shared,
    turn: &'a mut Turn,
    tasks: usize,
}

impl Drop for Close<'_> {
    fn drop(&mut self) {
        let Close { shared, turn, tasks } = self;
        shared.state.fetch_and(!OPEN, Ordering::SeqCst);
        let (mut spun, mut stalled) = (0, false);
        while shared.inside() {
            if spin(&mut spun) {
                stalled = shared.wait_until_left();
            }
        }
        if stalled {
            turn.backoff = (turn.backoff * 2).clamp(ALONE_MIN, ALONE_MAX);
            (turn.alone, turn.calm) = (turn.backoff, 0);
        } else {
            turn.calm = turn.calm.saturating_add(*tasks);
            if turn.calm > CALM {
                turn.backoff = 0;
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

    /// Opens the next job. The state is closed and nobody is inside.
    fn open(&self) {
        let state = self.state.load(Ordering::Relaxed);
        self.state.store(OPEN | (state.wrapping_add(NUMBER_ONE) & !OPEN), Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            drop(self.lock());
            self.wake.notify_all();
        }
    }

    fn inside(&self) -> bool {
        self.state.load(Ordering::Acquire) & INSIDE != 0
    }

    /// Sleeps until nobody is inside. True if that was a stall.
    fn wait_until_left(&self) -> bool {
        let (mut held, mut stalled) = (self.lock(), false);
        while self.inside() {
            let (again, timeout) =
                self.left.wait_timeout(held, STALL).unwrap_or_else(PoisonError::into_inner);
            held = again;
            if timeout.timed_out() {
                self.stalls.fetch_add(1, Ordering::Relaxed);
                stalled = true;
            }
        }
        stalled
    }

    fn work(&self) {
        // Each job is joined once: a worker that found no task left in it has nothing more to look for.
        let (mut done, mut spun) = (0, 0);
        while !self.stop.load(Ordering::Relaxed) {
            if self.join(&mut done) {
                spun = 0;
            } else if spin(&mut spun) {
                self.sleep(done);
                spun = 0;
            }
        }
    }

    /// Takes part in the open job unless its number is `done`, which then becomes its number. False if there was
    /// nothing to do.
    fn join(&self, done: &mut u64) -> bool {
        let state = self.state.load(Ordering::Relaxed);
        let number = state & !INSIDE;
        if state & OPEN == 0 || number == *done {
            return false;
        }
        if self.state.compare_exchange(state, state + 1, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            return true;
        }
        *done = number;
        // SAFETY: this worker is inside: the job was published before the state opened, and the caller does not
        // return, nor write it again, before the count is back at zero.
        let job = unsafe { *self.job.get() };
        let took = job.run.map_or(0, |run| {
            // SAFETY: as above, the closure is borrowed by a caller that waits for us.
            let run = unsafe { &*run };
            let tasks = std::panic::AssertUnwindSafe(|| take_tasks(self, job.tasks, run));
            std::panic::catch_unwind(tasks).unwrap_or_else(|_| {
                self.panicked.store(true, Ordering::Relaxed);
                0
            })
        });
        let before = self.state.fetch_sub(1, Ordering::AcqRel);
        if before & OPEN == 0 && before & INSIDE == 1 {
            // The caller may be asleep, waiting for the last one out.
            drop(self.lock());
            self.left.notify_one();
        }
        took > 0
    }

    fn sleep(&self, done: u64) {
        let mut held = self.lock();
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let idle = |state: u64| state & OPEN == 0 || state & !INSIDE == done;
        while idle(self.state.load(Ordering::SeqCst)) && !self.stop.load(Ordering::SeqCst) {
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

    #[test]
    fn a_worker_that_holds_up_the_caller_is_left_alone_for_a_while() {
        let pool = Pool::new(2).unwrap();
        let caller = std::thread::current().id();
        let arrived = std::sync::Barrier::new(2);
        let on_caller = AtomicUsize::new(0);
        pool.run(2, &|_| {
            arrived.wait();
            if std::thread::current().id() == caller {
                on_caller.fetch_add(1, Ordering::Relaxed);
            } else {
                while pool.shared.stalls.load(Ordering::Relaxed) == 0 {
                    std::thread::yield_now();
                }
            }
        });
        assert_eq!(on_caller.load(Ordering::Relaxed), 1);
        assert_eq!(pool.turn.lock().unwrap().alone, ALONE_MIN);
        let elsewhere = AtomicUsize::new(0);
        pool.run(ALONE_MIN, &|_| {
            let here = std::thread::current().id() == caller;
            elsewhere.fetch_add(usize::from(!here), Ordering::Relaxed);
        });
        assert_eq!(elsewhere.load(Ordering::Relaxed), 0);
        // That was the while; the worker is invited again, or this would never end.
        pool.run(2, &|_| {
            arrived.wait();
        });
    }

    #[test]
    fn callers_on_several_threads_take_turns() {
        let pool = Pool::new(3).unwrap();
        let sum = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..100 {
                        pool.run(20, &|task| {
                            sum.fetch_add(task, Ordering::Relaxed);
                        });
                    }
                });
            }
        });
        assert_eq!(sum.load(Ordering::Relaxed), 4 * 100 * (19 * 20 / 2));
    }
}
