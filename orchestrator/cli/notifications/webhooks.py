"""`--webhook`: a URL that is told when the submitted jobs end, or wait for a person."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from fanout.orchestrator.cli.terminal import output
from fanout.orchestrator.cli.terminal.exit_codes import UsageProblem
from fanout.orchestrator.client import JobClient
from fanout.orchestrator.client.attachment import attached
from fanout.orchestrator.configuration.settings import Settings
from fanout.orchestrator.embedded.notifier import start_notifier
from fanout.orchestrator.jobs.failures import InvalidJob
from fanout.orchestrator.jobs.spec import JobSpec
from fanout.orchestrator.jobs.store.subscription import Subscription
from fanout.orchestrator.server.notifications.messages import new_secret
from fanout.orchestrator.server.notifications.receivers import Receivers
from fanout.orchestrator.server.notifications.subscriptions import Subscriptions

WebhookOption = Annotated[
    str | None,
    typer.Option(
        "--webhook",
        metavar="URL",
        help="Send a message to this URL when a job ends or waits for a person, signed with "
        "FANOUT_NOTIFICATIONS__SECRET.",
    ),
]
SUBSCRIPTION_ID = "submit"
"""One subscription of a job is this command's: a repeated command replaces it."""


class JobWebhook:
    """The webhook of a command.

    Args:
        url: The option's value.
        settings: The settings of this process.
        client: The connected client.

    Raises:
        UsageProblem: No secret is set.
    """

    def __init__(self, url: str, settings: Settings, client: JobClient) -> None:
        told = settings.notifications
        secret = told.secret
        if secret is None:
            raise UsageProblem(
                "Webhooks are signed: set FANOUT_NOTIFICATIONS__SECRET, here and where they are "
                f"received, for example to {new_secret()}"
            )
        self._settings = settings
        self._subscription = Subscription(id=SUBSCRIPTION_ID, url=url, secret=secret)
        receivers = Receivers(told.allowed_hosts, by_proxy=told.proxy is not None)
        self._subscriptions = Subscriptions(client.notifications, receivers)

    async def register(self, specs: Sequence[JobSpec]) -> None:
        """Register the webhook for jobs that are about to be submitted.

        Raises:
            UsageProblem: The URL may not be notified.
        """
        try:
            await self._subscriptions.check(self._subscription)
        except InvalidJob as failure:
            raise UsageProblem(f"--webhook: {failure}") from None
        for spec in specs:
            await self._subscriptions.store(spec.id, self._subscription)

    async def submitted(self, specs: Sequence[JobSpec], ids: Sequence[str]) -> None:
        """Register it for jobs that were known already, and see to it that somebody sends."""
        for job_id in set(ids) - {spec.id for spec in specs}:
            await self._subscriptions.store(job_id, self._subscription)
        if self._settings.redis_url is None:
            await start_notifier(attached(self._settings))
        else:
            output.notice("A server of this installation sends the webhook: fanout serve")
