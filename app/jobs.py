"""The names of queues and jobs. `app` never imports `workers`: a job is known here by its dotted path only."""

from __future__ import annotations

from enum import StrEnum


class QueueName(StrEnum):
    """RQ queues, in the order in which a worker serves them."""

    CHAINS = "chains"
    SHOPPING = "shopping"


class JobName(StrEnum):
    """Jobs by the dotted path of the function that runs them. Arguments are identifiers, never secrets."""

    BUY = "workers.purchases.buy"
    CONFIRM = "workers.confirmations.confirm"
    STEP_BRIDGES = "workers.bridges.step"
    FIND_DEPOSITS = "workers.deposits.find"
    PAY_FROM_FAUCET = "workers.deposits.pay_from_faucet"
    SWEEP = "workers.sweeps.sweep"
    AUDIT = "workers.sweeps.audit_hourly"

    @property
    def queue(self) -> QueueName:
        """Return the queue that carries this job."""
        return QueueName.SHOPPING if self is JobName.BUY else QueueName.CHAINS

    @property
    def seconds(self) -> int:
        """Return how long this job may run. A purchase ends itself before; an audit reads all that there is."""
        return {JobName.BUY: 240, JobName.AUDIT: 900}.get(self, 60)
