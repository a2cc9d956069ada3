"""Names of queues and jobs. `app` does not import `workers`, so a job is named by its dotted path."""

from enum import StrEnum

FAILURE_TTL_SECONDS = 60
MAX_ARGUMENTS = 4
MAX_ARGUMENT_CHARACTERS = 100
AUDIT_LEASE = "audit"


class QueueName(StrEnum):
    """RQ queues, in a worker's order of priority."""

    CHAINS = "chains"
    SHOPPING = "shopping"


class JobName(StrEnum):
    """Jobs by the dotted path of their function. Arguments are identifiers, never secrets."""

    BUY = "workers.purchases.buy"
    CONFIRM = "workers.confirmations.confirm"
    ADVANCE_MOVEMENTS = "workers.movements.advance"
    FIND_DEPOSITS = "workers.deposits.find"
    PAY_FROM_FAUCET = "workers.deposits.pay_from_faucet"
    EXECUTE_APPROVALS = "workers.approvals.execute"
    DELIVER = "workers.events.deliver"
    SWEEP = "workers.sweeps.sweep"
    AUDIT = "workers.sweeps.audit_hourly"

    @property
    def queue(self) -> QueueName:
        return QueueName.SHOPPING if self is JobName.BUY else QueueName.CHAINS

    @property
    def timeout_seconds(self) -> int:
        """Return how long this job may run. A purchase ends earlier on its own; an audit reads whole tables."""
        # A web service may take two requests of a minute.
        return {JobName.BUY: 240, JobName.AUDIT: 900, JobName.EXECUTE_APPROVALS: 300}.get(self, 60)
