"""The names of queues and jobs. `app` never imports `workers`: a job is known here by its dotted path only."""

from __future__ import annotations

from enum import StrEnum


class QueueName(StrEnum):
    """RQ queues, in the order in which a worker serves them."""

    CHAINS = "chains"


class JobName(StrEnum):
    """Jobs by the dotted path of the function that runs them. Arguments are identifiers, never secrets."""

    CONFIRM = "workers.confirmations.confirm"
    FIND_DEPOSITS = "workers.deposits.find"
    PAY_FROM_FAUCET = "workers.deposits.pay_from_faucet"
    SWEEP = "workers.sweeps.sweep"
    AUDIT = "workers.sweeps.audit_hourly"

    @property
    def queue(self) -> QueueName:
        """Return the queue that carries this job."""
        return QueueName.CHAINS
