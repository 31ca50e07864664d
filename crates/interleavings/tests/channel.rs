//! The channel in every order of its threads: no consumer sleeps for ever, each load is taken once, none overtakes. A
//! consumer that is not woken is a deadlock, and loom finds that.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use interleavings::explore::in_every_order;
use interleavings::handover::channel::{ConsumerInbox, Feed, Waited};
use interleavings::handover::within::{FeedWithin, is_called, loads, number};
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;
use loom::thread::JoinHandle;

/// How many queues of a consumer have no mark.
const UNMARKED: usize = 4;

/// What was taken, by number.
type Taken = Rc<RefCell<Vec<u64>>>;

/// Everything that comes until the end, by number, and how many calls were heard.
fn all(inbox: &mut ConsumerInbox) -> (Vec<u64>, usize) {
    let (mut numbers, mut calls) = (Vec::new(), 0);
    loop {
        match inbox.wait(None) {
            Waited::Batch(load) => numbers.push(number(&load)),
            Waited::Deadline => calls += 1,
            Waited::Ended => return (numbers, calls),
        }
    }
}

fn next(inbox: &mut ConsumerInbox) -> u64 {
    match inbox.wait(None) {
        Waited::Batch(load) => number(&load),
        other => unreachable!("{other:?}"),
    }
}

/// Starts a receiver that has a feed, and drops that at its end.
fn receiver(inbox: &mut ConsumerInbox, body: impl FnOnce(&Feed) + 'static) -> JoinHandle<()> {
    let feed = inbox.attach(4);
    thread::spawn(move || body(&feed))
}

/// A receiver that keeps its feed until it is let go: a feed that goes wakes the consumer, whatever was forgotten.
fn staying_receiver(inbox: &mut ConsumerInbox, body: impl FnOnce(&Feed) + 'static) -> JoinHandle<()> {
    receiver(inbox, |feed| {
        body(feed);
        thread::park();
    })
}

fn end(receiver: JoinHandle<()>) {
    receiver.thread().unpark();
    receiver.join().expect("it ends");
}

/// An inbox whose next lanes have marks. The lanes before have ended.
fn with_marks() -> ConsumerInbox {
    let mut inbox = ConsumerInbox::default();
    (0..UNMARKED).for_each(|_| drop(inbox.attach(1)));
    inbox
}

#[test]
fn a_sleeping_consumer_hears_of_every_load_and_of_the_end() {
    in_every_order(3, || {
        let mut inbox = ConsumerInbox::default();
        let receiver = receiver(&mut inbox, |feed| loads(2).into_iter().for_each(|load| feed.send(load)));
        assert_eq!(all(&mut inbox).0, [1, 2]);
        end(receiver);
    });
}

#[test]
fn a_load_wakes_the_consumer_although_its_feed_stays() {
    in_every_order(3, || {
        let mut inbox = ConsumerInbox::default();
        let receiver = staying_receiver(&mut inbox, |feed| loads(2).into_iter().for_each(|load| feed.send(load)));
        assert_eq!([next(&mut inbox), next(&mut inbox)], [1, 2]);
        end(receiver);
    });
}

#[test]
fn what_was_left_quietly_is_heard_of_at_the_ring() {
    in_every_order(3, || {
        let mut inbox = ConsumerInbox::default();
        let receiver = staying_receiver(&mut inbox, |feed| {
            loads(2).into_iter().for_each(|load| feed.send_quietly(load));
            feed.ring();
        });
        assert_eq!([next(&mut inbox), next(&mut inbox)], [1, 2]);
        end(receiver);
    });
}

#[test]
fn what_was_left_quietly_by_a_feed_that_goes_is_still_taken() {
    in_every_order(3, || {
        let mut inbox = ConsumerInbox::default();
        let receiver = receiver(&mut inbox, |feed| feed.send_quietly(loads(1).remove(0)));
        assert_eq!(all(&mut inbox).0, [1]);
        end(receiver);
    });
}

#[test]
fn of_two_receivers_each_wakes_the_consumer_and_each_lane_keeps_its_order() {
    in_every_order(2, || {
        let mut inbox = ConsumerInbox::default();
        let mut loads = loads(3);
        let [third, second, first] = [loads.pop(), loads.pop(), loads.pop()].map(|load| load.expect("three"));
        let receivers = [
            receiver(&mut inbox, |feed| {
                feed.send(first);
                feed.send(second);
            }),
            receiver(&mut inbox, |feed| feed.send(third)),
        ];
        let (mut taken, _) = all(&mut inbox);
        let third = taken.iter().position(|number| *number == 3).expect("it is taken");
        taken.remove(third);
        assert_eq!(taken, [1, 2]);
        receivers.into_iter().for_each(end);
    });
}

#[test]
fn an_open_block_that_is_taken_out_and_left_again_neither_overtakes_nor_is_lost() {
    in_every_order(3, || {
        let mut inbox = ConsumerInbox::default();
        let receiver = receiver(&mut inbox, |feed| {
            let mut loads = loads(4).into_iter();
            feed.send(loads.next().expect("four"));
            feed.leave(loads.next().expect("four"));
            // Full now, unless the consumer has it.
            feed.take_open().into_iter().for_each(|open| feed.send(open));
            feed.send(loads.next().expect("four"));
            feed.leave(loads.next().expect("four"));
        });
        assert_eq!(all(&mut inbox).0, [1, 2, 3, 4]);
        end(receiver);
    });
}

#[test]
fn an_open_block_wakes_the_consumer_also_when_its_receiver_goes_on_filling_it() {
    in_every_order(3, || {
        let mut inbox = ConsumerInbox::default();
        let receiver = staying_receiver(&mut inbox, |feed| {
            feed.leave(loads(1).remove(0));
            if let Some(open) = feed.take_open() {
                feed.leave(open);
            }
        });
        assert_eq!(next(&mut inbox), 1);
        end(receiver);
    });
}

#[test]
fn a_call_is_heard_whether_the_consumer_sleeps_or_is_about_to() {
    in_every_order(3, || {
        let mut inbox = ConsumerInbox::default();
        let _feed = inbox.attach(1);
        let caller = inbox.caller();
        let calling = thread::spawn(move || caller.call());
        assert!(matches!(inbox.wait(None), Waited::Deadline));
        calling.join().expect("it ends");
    });
}

#[test]
fn a_consumer_that_hears_a_call_sees_what_was_done_before_it() {
    in_every_order(3, || {
        let mut inbox = ConsumerInbox::default();
        let _feed = inbox.attach(1);
        let reason = Arc::new(AtomicUsize::new(0));
        let callers = [(); 2].map(|()| {
            let (caller, reason) = (inbox.caller(), Arc::clone(&reason));
            thread::spawn(move || {
                reason.fetch_add(1, Ordering::Relaxed);
                caller.call();
            })
        });
        // Both, or the one whose call is heard, and the other one calls again.
        let mut seen = 0;
        while seen < 2 {
            assert!(matches!(inbox.wait(None), Waited::Deadline));
            let sees = reason.load(Ordering::Relaxed);
            assert!(sees > seen, "a call is heard and its reason is not seen");
            seen = sees;
        }
        callers.into_iter().for_each(|caller| caller.join().expect("it ends"));
    });
}

#[test]
fn of_two_calls_at_once_one_is_heard_at_least_and_a_load_beside_them_as_well() {
    in_every_order(2, || {
        let mut inbox = ConsumerInbox::default();
        let callers = [inbox.caller(), inbox.caller()].map(|caller| thread::spawn(move || caller.call()));
        let receiver = receiver(&mut inbox, |feed| feed.send(loads(1).remove(0)));
        let caller = inbox.caller();
        let (taken, calls) = all(&mut inbox);
        assert_eq!(taken, [1]);
        callers.into_iter().for_each(|caller| caller.join().expect("it ends"));
        assert!(calls > 0 || is_called(&caller), "a call is lost");
        end(receiver);
    });
}

#[test]
fn a_channel_that_is_ended_wakes_its_consumer_which_takes_what_is_there() {
    in_every_order(3, || {
        let mut inbox = ConsumerInbox::default();
        let feed = inbox.attach(2);
        let closer = inbox.closer();
        let ending = thread::spawn(move || {
            feed.send_quietly(loads(1).remove(0));
            closer.end();
            feed
        });
        assert_eq!(all(&mut inbox).0, [1]);
        drop(ending.join().expect("it ends"));
    });
}

#[test]
fn what_a_closer_drains_and_what_the_consumer_takes_is_everything_once() {
    in_every_order(3, || {
        let mut inbox = ConsumerInbox::default();
        let feed = inbox.attach(3);
        let mut loads = loads(3).into_iter();
        feed.send(loads.next().expect("three"));
        feed.send(loads.next().expect("three"));
        feed.leave(loads.next().expect("three"));
        let closer = inbox.closer();
        let draining = thread::spawn(move || closer.drain().map(|load| number(&load)).collect::<Vec<_>>());
        drop(feed);
        let (taken, _) = all(&mut inbox);
        let drained = draining.join().expect("it ends");
        assert!(taken.is_sorted() && drained.is_sorted(), "{taken:?} {drained:?}");
        let mut both = [taken, drained].concat();
        both.sort_unstable();
        assert_eq!(both, [1, 2, 3]);
    });
}

#[test]
fn what_is_evicted_is_the_oldest_that_waits_and_the_consumer_has_the_others() {
    in_every_order(3, || {
        let mut inbox = ConsumerInbox::default();
        let evicted = Taken::default();
        let receiver = receiver(&mut inbox, {
            let evicted = Rc::clone(&evicted);
            move |feed| {
                let mut loads = loads(3).into_iter();
                feed.send(loads.next().expect("three"));
                feed.leave(loads.next().expect("three"));
                feed.take_open().into_iter().for_each(|open| feed.send(open));
                evicted.borrow_mut().extend(feed.evict().map(|load| number(&load)));
                feed.send(loads.next().expect("three"));
            }
        });
        let (taken, _) = all(&mut inbox);
        end(receiver);
        assert!(taken.is_sorted(), "{taken:?}");
        let mut both = [taken, evicted.take()].concat();
        both.sort_unstable();
        assert_eq!(both, [1, 2, 3]);
    });
}

#[test]
fn a_mark_is_never_lost_whatever_comes_while_it_is_taken_away() {
    in_every_order(3, || {
        let mut inbox = with_marks();
        let receiver = staying_receiver(&mut inbox, |feed| {
            feed.send(loads(1).remove(0));
            let mut later = loads(3).into_iter().skip(1);
            feed.leave(later.next().expect("two"));
            feed.take_open().into_iter().for_each(|open| feed.send(open));
            feed.send(later.next().expect("two"));
        });
        assert_eq!([next(&mut inbox), next(&mut inbox), next(&mut inbox)], [1, 2, 3]);
        end(receiver);
    });
}

#[test]
fn marks_of_two_lanes_in_one_word_do_not_disturb_each_other() {
    in_every_order(2, || {
        let mut inbox = with_marks();
        let mut loads = loads(2);
        let [second, first] = [loads.pop(), loads.pop()].map(|load| load.expect("two"));
        let receivers = [
            staying_receiver(&mut inbox, |feed| feed.send(first)),
            staying_receiver(&mut inbox, |feed| feed.send(second)),
        ];
        let mut taken = [next(&mut inbox), next(&mut inbox)];
        taken.sort_unstable();
        assert_eq!(taken, [1, 2]);
        receivers.into_iter().for_each(end);
    });
}

#[test]
fn the_end_of_a_lane_with_a_mark_is_seen() {
    in_every_order(3, || {
        let mut inbox = with_marks();
        let receiver = receiver(&mut inbox, |feed| feed.leave(loads(1).remove(0)));
        assert_eq!(all(&mut inbox).0, [1]);
        end(receiver);
    });
}

#[test]
fn a_consumer_goes_on_with_its_next_lanes_behind_the_last_load_of_those_before() {
    in_every_order(2, || {
        let mut inbox = ConsumerInbox::default();
        let mut loads = loads(2);
        let [second, first] = [loads.pop(), loads.pop()].map(|load| load.expect("two"));
        let before = receiver(&mut inbox, |feed| feed.send(first));
        let mut replacement = ConsumerInbox::replacement(&inbox.caller());
        // The next lane has a mark; those before it have ended.
        (0..UNMARKED).for_each(|_| drop(replacement.attach(1)));
        // It rings the same bell, already while the lanes before have not ended.
        let after = receiver(&mut replacement, |feed| feed.send(second));
        assert_eq!(all(&mut inbox).0, [1]);
        inbox.go_on_with(replacement);
        assert_eq!(all(&mut inbox).0, [2]);
        [before, after].into_iter().for_each(end);
    });
}
