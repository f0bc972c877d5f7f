"""When the guards are asked for the stacks of their ranks, and what follows: steps of `keeper_steps`."""

from ipexctl.protocol import journal, messages
from ipexctl.protocol.journal import Reason, Record
from ipexctl.remote.agent.keeper_state import Inquiry, KeeperRun, RunPhase

TIMES = 16  # inquiries that one request may ask for


def on_stall(run: "KeeperRun", stall: "journal.Stall") -> None:
    head = run.spec.head_spec
    ends = (head.stall_kill or head.stall_restart) and stall.grave
    kill = ends and not stall.early
    if ends:
        stall = stall._replace(limit=run.spec.timings.stall_warn)
    _raise_alarm(run, stall._replace(kill=kill), "no progress for %.0f s" % stall.seconds if kill else "")


def on_straggling(run: "KeeperRun", few: "journal.Straggling") -> None:
    kill = run.spec.head_spec.straggler_kill
    verdict = ""
    if kill:
        verdict = "%d rank%s done for %.0f s, others go on" % (few.done, "s"[few.done == 1 :], few.seconds)
    _raise_alarm(run, few._replace(kill=kill), verdict)


def _raise_alarm(run: "KeeperRun", alarm: "Record", verdict: str) -> None:
    """``verdict``: why the run is to be stopped once the stacks are there, or ""."""
    if run.state is not RunPhase.RUNNING:
        return
    run.verdict = run.verdict or verdict
    run.note(alarm)
    if run.inquiry is None or not run.inquiry.requested:  # else its stacks are of this moment
        _ask_guards(run, requested=False)


def _ask_guards(run: "KeeperRun", requested: bool) -> None:
    run.inquiry = Inquiry(set(run.begun), run.now.steady + run.spec.timings.inquiry, requested)
    run.send(messages.ReportStacks())


def on_stacks_request(run: "KeeperRun", order: "messages.RequestStacks") -> None:
    if run.state is RunPhase.RUNNING:
        run.requests += [order.request] * min(order.times, TIMES)
        _answer_requests(run)


def _answer_requests(run: "KeeperRun") -> None:
    """Begins the inquiry for all requests that wait, once for each; they go on waiting while there is another one."""
    if run.inquiry or not run.requests:
        return
    for request in dict.fromkeys(run.requests):
        run.requests.remove(request)
        run.note(journal.StacksRequested(request))
    _ask_guards(run, requested=True)


def on_stacks_reported(run: "KeeperRun", host: str, message: "messages.StacksReported") -> None:
    if run.inquiry:
        run.inquiry.hosts.discard(host)


def check_inquiry(run: "KeeperRun") -> None:
    """Ends an inquiry that all guards have answered, or whose time is over."""
    inquiry = run.inquiry
    if inquiry is None or (inquiry.hosts and run.now.steady <= inquiry.until):
        return
    run.inquiry = None
    run.note(journal.InquiryEnded(sorted(inquiry.hosts)))
    if run.verdict:
        run.stop(Reason.LIMIT, run.verdict)
    else:
        _answer_requests(run)
