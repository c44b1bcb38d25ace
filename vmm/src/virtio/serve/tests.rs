//! Taking and returning buffers, with a driver that need not be kind.

use super::*;
use crate::virtio::mock_driver::{CountingLine, DATA, memory};
use std::sync::atomic::Ordering;
use virtio_queue::desc::RawDescriptor;
use virtio_queue::desc::split::Descriptor;
use virtio_queue::mock::MockSplitQueue;
use vm_memory::{Bytes as _, GuestAddress};

const USED: u32 = 0x8000;

struct Bench {
    memory: Arc<GuestMemory>,
    line: Arc<CountingLine>,
    interrupt: Interrupt,
}

impl Bench {
    fn new() -> Self {
        let line = Arc::new(CountingLine::default());
        Self { memory: memory(), interrupt: Interrupt::new(line.clone()), line }
    }

    /// A queue of 64 with that many chains of one descriptor.
    fn queue(&self, chains: u16) -> (Queue, MockSplitQueue<'_, GuestMemory>) {
        let mock = MockSplitQueue::create(self.memory.as_ref(), GuestAddress(0x1000), 64);
        let descriptors: Vec<_> =
            (0..chains).map(|_| RawDescriptor::from(Descriptor::new(DATA, 1, 0, 0))).collect();
        mock.add_desc_chains(&descriptors, 0).unwrap();
        let mut queue: Queue = mock.create_queue().unwrap();
        // The mock lets its rings overlap.
        queue.set_used_ring_address(Some(USED), Some(0));
        (queue, mock)
    }

    fn used_index(&self) -> u16 {
        self.memory.read_obj(GuestAddress(u64::from(USED) + 2)).unwrap()
    }

    fn serve(&self, queue: &mut Queue, used: Used) -> (Result<Progress, QueueFault>, usize) {
        let mut served = 0;
        let result = serve(queue, &self.memory, &self.interrupt, |_| {
            served += 1;
            used
        });
        (result, served)
    }

    fn interrupts(&self) -> usize {
        self.line.0.load(Ordering::SeqCst)
    }
}

#[test]
fn a_batch_is_drained_with_one_interrupt() {
    let bench = Bench::new();
    let (mut queue, _mock) = bench.queue(10);
    let (result, served) = bench.serve(&mut queue, Used::cheap(1));
    assert!(matches!(result, Ok(Progress::Drained)));
    assert_eq!((served, bench.interrupts()), (10, 1));
    assert_eq!(bench.used_index(), 10);
}

#[test]
fn an_empty_queue_interrupts_nobody() {
    let bench = Bench::new();
    let (mut queue, _mock) = bench.queue(0);
    assert!(matches!(bench.serve(&mut queue, Used::cheap(0)), (Ok(Progress::Drained), 0)));
    assert_eq!(bench.interrupts(), 0);
}

#[test]
fn costly_requests_are_reported_at_once() {
    let bench = Bench::new();
    let (mut queue, _mock) = bench.queue(3);
    bench.serve(&mut queue, Used { written: 0, cost: INTERRUPT_COST }).0.unwrap();
    assert_eq!(bench.interrupts(), 3);
}

#[test]
fn a_driver_that_wants_no_interrupt_yet_gets_none() {
    let bench = Bench::new();
    let (mut queue, mock) = bench.queue(10);
    queue.set_event_idx(true);
    // used_event, behind the available ring: tell me at the tenth from here.
    let used_event = mock.avail_addr().0 + 4 + 2 * 64;
    bench.memory.write_obj(20_u16, GuestAddress(used_event)).unwrap();
    bench.serve(&mut queue, Used::cheap(0)).0.unwrap();
    assert_eq!(bench.interrupts(), 0);
    bench.memory.write_obj(15_u16, GuestAddress(used_event)).unwrap();
    mock.add_desc_chains(&[RawDescriptor::from(Descriptor::new(DATA, 1, 0, 0)); 10], 0).unwrap();
    bench.serve(&mut queue, Used::cheap(0)).0.unwrap();
    assert_eq!(bench.interrupts(), 1);
}

#[test]
fn a_driver_that_never_stops_offering_does_not_hold_the_thread() {
    let bench = Bench::new();
    let (mut queue, mock) = bench.queue(64);
    let mut served = 0_u16;
    let progress = serve(&mut queue, &bench.memory, &bench.interrupt, |_| {
        served += 1;
        mock.avail().idx().store(64 + served);
        Used::cheap(0)
    });
    assert!(matches!(progress, Ok(Progress::BudgetSpent)));
    assert_eq!(served, 64);
}

#[test]
fn an_index_that_jumps_is_a_fault() {
    let bench = Bench::new();
    for index in [65, 1000, u16::MAX] {
        let (mut queue, mock) = bench.queue(1);
        mock.avail().idx().store(index);
        assert!(matches!(bench.serve(&mut queue, Used::cheap(0)), (Err(QueueFault::Ring(_)), 0)));
    }
}

#[test]
fn a_head_outside_the_table_is_a_fault() {
    let bench = Bench::new();
    for head in [64, 65, u16::MAX] {
        let (mut queue, mock) = bench.queue(1);
        mock.avail().ring().ref_at(0).unwrap().store(head);
        let (result, served) = bench.serve(&mut queue, Used::cheap(0));
        assert!(matches!(result, Err(QueueFault::Head { head: found, size: 64 }) if found == head));
        assert_eq!((served, bench.used_index()), (0, 0), "nothing was returned");
    }
}

/// CVE-2026-45782: the same head twice. Here the first is finished and returned before the second is looked at.
#[test]
fn the_same_head_twice_is_never_in_flight_twice() {
    let bench = Bench::new();
    let (mut queue, mock) = bench.queue(2);
    mock.avail().ring().ref_at(1).unwrap().store(0);
    let mut in_flight = 0;
    serve(&mut queue, &bench.memory, &bench.interrupt, |chain| {
        assert_eq!(bench.used_index(), in_flight);
        in_flight += 1;
        assert_eq!(chain.head_index(), 0);
        Used::cheap(0)
    })
    .unwrap();
    assert_eq!(bench.used_index(), 2);
}

#[test]
fn a_broken_queue_asks_for_a_reset_and_rests() {
    let bench = Bench::new();
    let (queue, mock) = bench.queue(1);
    let doorbell = EventFd::new(vmm_sys_util::eventfd::EFD_NONBLOCK).unwrap();
    let active = ActiveQueue { queue, doorbell };
    let mut served =
        ServedQueue::new(active, bench.memory.clone(), bench.interrupt.clone()).unwrap();
    let mut faults = FaultLog::new("test");
    mock.avail().idx().store(100);
    served.run(&bench.memory, &mut faults, |_, _| Used::cheap(0));
    assert!(bench.interrupt.needs_reset());
    mock.avail().idx().store(1);
    served.run(&bench.memory, &mut faults, |_, _| panic!("the queue is broken"));
    assert_eq!(
        served.doorbell().read().unwrap_err().kind(),
        io::ErrorKind::WouldBlock,
        "the doorbell was taken"
    );
}

#[test]
fn a_spent_budget_rings_its_own_doorbell() {
    let bench = Bench::new();
    let (queue, mock) = bench.queue(64);
    let active =
        ActiveQueue { queue, doorbell: EventFd::new(vmm_sys_util::eventfd::EFD_NONBLOCK).unwrap() };
    let mut served =
        ServedQueue::new(active, bench.memory.clone(), bench.interrupt.clone()).unwrap();
    mock.avail().idx().store(64);
    served.run(&bench.memory, &mut FaultLog::new("test"), |_, _| Used::cheap(0));
    assert_eq!(served.doorbell().read().unwrap(), 1);
}
