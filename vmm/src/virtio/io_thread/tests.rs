//! The promises of an event loop to those who register with it.

use super::*;
use std::os::unix::net::UnixStream;
use std::sync::Condvar;

/// Remembers its calls, and does something on the first.
struct Recorder {
    calls: Vec<(u64, EventSet)>,
    source: Option<Arc<EventFd>>,
    on_call: Option<Box<dyn FnOnce() + Send>>,
}

impl EventHandler for Recorder {
    fn ready(&mut self, token: u64, readiness: EventSet) {
        self.calls.push((token, readiness));
        if let Some(source) = &self.source {
            let _value = source.read();
        }
        if let Some(act) = self.on_call.take() {
            act();
        }
    }
}

fn recorder() -> Arc<Mutex<Recorder>> {
    Arc::new(Mutex::new(Recorder { calls: Vec::new(), source: None, on_call: None }))
}

fn event() -> Arc<EventFd> {
    Arc::new(EventFd::new(EFD_NONBLOCK).unwrap())
}

fn turn(event_loop: &EventLoop) -> usize {
    event_loop.turn(Some(Duration::ZERO)).unwrap()
}

#[test]
fn an_event_reaches_its_handler_with_its_token() {
    let event_loop = EventLoop::new().unwrap();
    let (handler, source) = (recorder(), event());
    let _registration =
        event_loop.handle().register(source.clone(), EventSet::IN, handler.clone(), 7).unwrap();
    assert_eq!(turn(&event_loop), 0);
    source.write(1).unwrap();
    assert_eq!(turn(&event_loop), 1);
    assert_eq!(handler.lock().unwrap().calls, [(7, EventSet::IN)]);
}

#[test]
fn what_was_ready_before_it_was_registered_is_not_lost() {
    let event_loop = EventLoop::new().unwrap();
    for interest in [EventSet::IN, EventSet::IN | EventSet::EDGE_TRIGGERED] {
        let (handler, source) = (recorder(), event());
        source.write(1).unwrap();
        let _registration =
            event_loop.handle().register(source, interest, handler.clone(), 1).unwrap();
        turn(&event_loop);
        assert_eq!(handler.lock().unwrap().calls.len(), 1);
    }
}

#[test]
fn a_change_of_interest_reports_what_already_holds() {
    let event_loop = EventLoop::new().unwrap();
    let (ours, _theirs) = UnixStream::pair().unwrap();
    let handler = recorder();
    let edge = EventSet::EDGE_TRIGGERED;
    let registration = event_loop
        .handle()
        .register(Arc::new(ours), EventSet::IN | edge, handler.clone(), 1)
        .unwrap();
    assert_eq!(turn(&event_loop), 0);
    for _ in 0..2 {
        registration.modify(EventSet::IN | EventSet::OUT | edge).unwrap();
        assert_eq!(turn(&event_loop), 1, "writable all the time");
        assert_eq!(turn(&event_loop), 0, "and said once");
    }
}

#[test]
fn a_handler_that_unregisters_another_in_the_same_turn_silences_it() {
    let event_loop = EventLoop::new().unwrap();
    let (first, second) = (recorder(), recorder());
    let (a, b) = (event(), event());
    a.write(1).unwrap();
    b.write(1).unwrap();
    let registrations = [
        event_loop.handle().register(a, EventSet::IN, first.clone(), 1).unwrap(),
        event_loop.handle().register(b, EventSet::IN, second.clone(), 2).unwrap(),
    ];
    // Whichever comes first drops both registrations.
    let registrations = Arc::new(Mutex::new(Some(registrations)));
    for handler in [&first, &second] {
        let registrations = registrations.clone();
        handler.lock().unwrap().on_call =
            Some(Box::new(move || drop(registrations.lock().unwrap().take())));
    }
    assert_eq!(turn(&event_loop), 2, "the kernel has reported both");
    let calls = first.lock().unwrap().calls.len() + second.lock().unwrap().calls.len();
    assert_eq!(calls, 1);
    assert_eq!(event_loop.handle().source_count(), 0);
}

#[test]
fn a_successor_on_the_same_descriptor_number_does_not_get_old_events() {
    let event_loop = EventLoop::new().unwrap();
    let handler = recorder();
    for round in 0..3 {
        let source = event();
        source.write(1).unwrap();
        let registration =
            event_loop.handle().register(source, EventSet::IN, handler.clone(), round).unwrap();
        drop(registration);
        assert_eq!(turn(&event_loop), 0);
    }
    assert!(handler.lock().unwrap().calls.is_empty());
}

#[test]
fn a_source_stays_open_as_long_as_it_is_registered() {
    let event_loop = EventLoop::new().unwrap();
    let (ours, theirs) = UnixStream::pair().unwrap();
    let registration =
        event_loop.handle().register(Arc::new(ours), EventSet::IN, recorder(), 0).unwrap();
    rustix::io::write(&theirs, b"x").unwrap();
    drop(registration);
    assert_eq!(rustix::io::write(&theirs, b"x"), Err(rustix::io::Errno::PIPE));
}

#[test]
fn hundreds_of_sources_come_and_go() {
    let event_loop = EventLoop::new().unwrap();
    let handler = recorder();
    let sources: Vec<_> = (0..300).map(|_| event()).collect();
    let mut registrations: Vec<_> = sources
        .iter()
        .zip(0..)
        .map(|(source, token)| {
            let interest = EventSet::IN | EventSet::EDGE_TRIGGERED;
            event_loop.handle().register(source.clone(), interest, handler.clone(), token).unwrap()
        })
        .collect();
    for source in &sources {
        source.write(1).unwrap();
    }
    while turn(&event_loop) > 0 {}
    let mut tokens: Vec<u64> =
        handler.lock().unwrap().calls.iter().map(|(token, _)| *token).collect();
    tokens.sort_unstable();
    assert_eq!(tokens, (0..300).collect::<Vec<u64>>());
    registrations.truncate(10);
    assert_eq!(event_loop.handle().source_count(), 10);
}

#[test]
fn a_thread_runs_what_it_is_given_first_and_ends_when_dropped() {
    let (name, at_start) = mpsc::channel();
    let thread = IoThread::spawn("io-test", move || {
        name.send(std::thread::current().name().map(str::to_owned)).map_err(io::Error::other)
    })
    .unwrap();
    // Already there: spawning waits for it.
    assert_eq!(at_start.try_recv().unwrap().as_deref(), Some("io-test"));
    let (source, handler) = (event(), recorder());
    let called = Arc::new((Mutex::new(false), Condvar::new()));
    let signal = called.clone();
    handler.lock().unwrap().source = Some(source.clone());
    handler.lock().unwrap().on_call = Some(Box::new(move || {
        *signal.0.lock().unwrap() = true;
        signal.1.notify_all();
    }));
    let registration = thread.register(source.clone(), EventSet::IN, handler.clone(), 3).unwrap();
    source.write(1).unwrap();
    drop(called.1.wait_while(called.0.lock().unwrap(), |called| !*called).unwrap());
    let handle = thread.handle().clone();
    drop(thread);
    assert_eq!(handle.source_count(), 0);
    drop(registration);
    assert!(
        handle.register(event(), EventSet::IN, handler.clone(), 0).is_err(),
        "the loop has ended"
    );
    assert_eq!(handler.lock().unwrap().calls, [(3, EventSet::IN)]);
}

#[test]
fn a_thread_that_cannot_start_says_why() {
    let error = IoThread::spawn("io-test", || Err(io::Error::other("no filter"))).err().unwrap();
    assert_eq!(error.to_string(), "no filter");
}

#[test]
fn unregistering_under_the_handlers_mutex_is_final() {
    let thread = IoThread::spawn("io-test", || Ok(())).unwrap();
    for _ in 0..200 {
        let (source, handler) = (event(), recorder());
        // Level-triggered and never drained, so the thread calls as fast as it can.
        source.write(1).unwrap();
        let registration = thread.register(source, EventSet::IN, handler.clone(), 0).unwrap();
        let calls = {
            let handler = handler.lock().unwrap();
            drop(registration);
            handler.calls.len()
        };
        // A later registration goes through the same loop: once it was served, so was everything before it.
        let (fence, fenced) = (event(), recorder());
        let (tell, told) = mpsc::channel();
        fenced.lock().unwrap().source = Some(fence.clone());
        fenced.lock().unwrap().on_call = Some(Box::new(move || tell.send(()).unwrap()));
        fence.write(1).unwrap();
        let registration = thread.register(fence, EventSet::IN, fenced.clone(), 0).unwrap();
        told.recv().unwrap();
        drop(registration);
        assert_eq!(handler.lock().unwrap().calls.len(), calls);
    }
}
