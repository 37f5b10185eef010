"""What a job may not have: one check for clients, all doors of the service, and workers.

A client refuses a job before it is stored. The worker is the authority, as it is for ceilings: it
checks again with its own definitions and settings.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

from ..approvals import InterruptOn
from ..configuration.agent_definitions import AgentDefinition, AgentDefinitions
from ..jobs.ceilings import Ceilings
from ..jobs.failures import ChoiceRefused, InvalidJob
from ..jobs.network_names import Network, is_covered
from ..jobs.spec import CallerPolicy, JobSpec, Limits, TreeBounds

SCRIPTED = "scripted:"
"""The beginning of the name of a model whose replies are in a file of the worker's host."""
ANY = "*"
DEFINITIONS_SAY = "what agent definitions say"
SHOWN_CHARACTERS = 100
"""The longest part of a caller's value in a refusal."""


def check_submission(
    spec: JobSpec, definitions: AgentDefinitions, *, defaults: Limits, ceilings: Ceilings
) -> None:
    """Refuse what a job asks for and may not have.

    Args:
        spec: The job, with what it takes from the one that it continues.
        definitions: The agents of the installation.
        defaults: The limits of a job, where neither it nor its agent sets them.
        ceilings: The largest limits of any job.

    Raises:
        UnknownAgent: Its agent does not exist.
        LimitExceeded: A limit is above the installation's.
        InvalidJob: It has a command that its agent could not run without approval.
        ChoiceRefused: It asks for a host that its agent does not have, or its caller may not choose
            its model, a command or a limit.
    """
    definition, policy = definitions[spec.agent], spec.caller_policy
    own = definition.job_limits().over(defaults)
    ceilings.check(spec.limits)
    if spec.reuse and spec.script is None:
        raise InvalidJob("reuse is for the calls of a script: leave it out, or run a script.")
    if spec.script is not None:
        check_script_policy(definition, spec.interrupt_on)
    check_commands(
        definition, spec.interrupt_on, verify=spec.verify, verify_merges=spec.verify_merges
    )
    if policy is not None:
        _check_model(spec, policy, definitions)
    if policy is None or policy.anything:
        _check_network(spec, own, ceilings.network, "FANOUT_CEILINGS__NETWORK")
        return
    _check_network(spec, own, policy.limits.network, "FANOUT_API__CALLERS__LIMITS__NETWORK")
    if spec.parent_id is None:  # those of other jobs are what a worker has made of their parents'
        _check_verify(spec, policy, definition)
        _check_limits(spec, policy, own)


def check_price(spec: JobSpec, definition: AgentDefinition, bounds: TreeBounds, model: str) -> None:
    """Refuse a budget of money for a job with a model whose price is not known.

    The installation's default limit is not meant: it binds each job alone, as far as prices are
    known.

    Args:
        spec: The job.
        definition: The definition of its agent.
        bounds: The limits of a tree.
        model: The model if neither the job nor its agent names one; empty if it is not known.

    Raises:
        InvalidJob: There is no price for the model, or for one of its fallbacks.
    """
    limits = spec.limits.over(definition.job_limits())
    is_bound = limits.max_cost_usd is not None or bounds.max_tree_cost_usd is not None
    if not is_bound or definition.has_own_model:
        return
    from ..deep_agent import ModelUsage, price  # noqa: PLC0415 - few jobs have such a budget

    for part in (spec.model or definition.model or model).split(","):
        if (name := part.strip()) and price(name, ModelUsage()) is None:
            raise InvalidJob(without_price(name))


def without_price(model: str) -> str:
    """Return why a job with a budget of money cannot use a model whose price is not known."""
    return (
        f"max_cost_usd cannot be kept with {model[:SHOWN_CHARACTERS]}, whose price is not known: "
        "give max_tokens in its place, or another model."
    )


def check_script_policy(definition: AgentDefinition, interrupt_on: InterruptOn) -> None:
    """Refuse a script under a definition whose tasks a person has to approve, or that is remote.

    Args:
        definition: The definition of the job's agent.
        interrupt_on: The policy that the job has besides.

    Raises:
        InvalidJob: The text says which of them.
    """
    if definition.has_own_model:
        why = "works elsewhere" if definition.a2a else "is a program of its own"
        raise InvalidJob(
            f"{definition.name} {why}, so no script can run as it: name another agent."
        )
    if any(policy.get("task") for policy in (interrupt_on, definition.interrupt_on)):
        raise InvalidJob(
            f"A person approves each task of {definition.name}, and a script would start tasks "
            "without asking: name another agent, or have an operator remove task from interrupt_on "
            "of its definition."
        )


def check_commands(
    definition: AgentDefinition, interrupt_on: InterruptOn, **commands: str | None
) -> None:
    """Refuse commands for an agent whose commands a person has to approve, or that runs none.

    Nobody would be asked before they run: the definition itself may have them, but not the job.

    Args:
        definition: The definition of the agent.
        interrupt_on: The policy that the job has besides.
        commands: The job's own `verify` and `verify_merges`.

    Raises:
        InvalidJob: The text names the command that is refused.
    """
    asks = any(policy.get("execute") for policy in (interrupt_on, definition.interrupt_on))
    has_none = definition.tools is not None and "execute" not in definition.tools
    for name, command in commands.items():
        if command and (asks or has_none) and command != getattr(definition, name):
            why = "a person approves its commands" if asks else "it has no tool execute"
            raise InvalidJob(
                f"{definition.name} may not run commands on its own ({why}): leave {name} out, name "
                f"another agent, or have an operator put the command into {name} of its definition."
            )


def _check_network(spec: JobSpec, own: Limits, opened: Network | None, setting: str) -> None:
    """Refuse hosts beyond those of the agent, whoever asks for them.

    Args:
        spec: The job.
        own: The limits of its agent.
        opened: Other hosts that an operator has opened to who asks.
        setting: Where an operator opens them.
    """
    if not isinstance(spec.limits.network, tuple):
        return
    given = (hosts for hosts in (own.network, opened) if isinstance(hosts, tuple))
    permitted = [host for hosts in given for host in hosts]
    for host in spec.limits.network:
        if not is_covered(host, permitted):
            raise ChoiceRefused(
                f"limits.network asks for {_shown(host)}, and a job of {spec.agent} reaches "
                f"{_listed(permitted, 'no host')}: ask for no others, or have an operator add it "
                f"to the network of the agent's definition or to {setting}."
            )


def _check_model(spec: JobSpec, policy: CallerPolicy, definitions: AgentDefinitions) -> None:
    names = [name for part in (spec.model or "").split(",") if (name := part.strip())]
    if any(name.casefold().startswith(SCRIPTED) for name in names):
        raise ChoiceRefused(
            "A scripted model is named by the definition of an agent, and by no caller: leave model "
            "out, or have an operator define an agent with it."
        )
    if policy.anything:
        return
    # The model of a run holds for the jobs below it, whose agents name none.
    known = definitions.values() if spec.parent_id else (definitions[spec.agent],)
    own = {name.strip() for one in known for name in (one.model or "").split(",")}
    listed = policy.models or ()
    for name in names:
        if name not in own and not any(fnmatchcase(name, pattern) for pattern in listed):
            raise ChoiceRefused(
                f"This caller may not choose the model {_shown(name)}, only "
                f"{_listed(listed, DEFINITIONS_SAY)}: leave model out, or have an "
                "operator permit it (FANOUT_API__CALLERS__MODELS, or a new key with "
                "`fanout keys create --may-choose-model`)."
            )


def check_script_command(
    spec: JobSpec, definition: AgentDefinition, name: str, command: str | None
) -> None:
    """Refuse a command in a script that the script's caller may not choose for a job.

    A script that an agent has written is not bound: nor are the commands in the agent's tasks.

    Args:
        spec: The script's job.
        definition: The definition of the agent that the call names, or of the job's own.
        name: The function or the argument that has the command: `run` or `verify`.
        command: The command.

    Raises:
        ChoiceRefused: It may not.
    """
    policy = spec.caller_policy
    if policy is None or policy.anything or spec.parent_id is not None:
        return
    _check_command(name, command or None, definition.verify, policy)


def _check_verify(spec: JobSpec, policy: CallerPolicy, definition: AgentDefinition) -> None:
    for name in ("verify", "verify_merges"):
        _check_command(name, getattr(spec, name), getattr(definition, name), policy)


def _check_command(name: str, command: str | None, own: str | None, policy: CallerPolicy) -> None:
    listed = policy.verify or ()
    if command not in {own, *listed, None} and ANY not in listed:
        raise ChoiceRefused(
            f"This caller may not choose the command in {name}, only "
            f"{_listed(listed, DEFINITIONS_SAY)}: leave {name} out (null, where a continuation "
            "has it from the earlier job), or have an operator permit it "
            "(FANOUT_API__CALLERS__VERIFY, or a new key with "
            "`fanout keys create --may-choose-verify`)."
        )


def _check_limits(spec: JobSpec, policy: CallerPolicy, own: Limits) -> None:
    """Refuse limits above the definition's, and above those that the policy opens."""
    for name, asked in spec.limits:
        of_definition, opened = getattr(own, name), getattr(policy.limits, name)
        if name == "network" or asked is None or of_definition is None:
            continue
        most = max(of_definition, opened or 0)
        if not asked <= most:
            raise ChoiceRefused(
                f"limits.{name} asks for {asked:,}, and this caller may choose {most:,} at "
                "the most: ask for less, or have an operator permit it "
                f"(FANOUT_API__CALLERS__LIMITS__{name.upper()}, or a new key with "
                "`fanout keys create --may-choose-limit`)."
            )


def _shown(text: str) -> str:
    return repr(text[:SHOWN_CHARACTERS])


def _listed(entries: Iterable[str], without: str) -> str:
    return ", ".join(entry[:SHOWN_CHARACTERS] for entry in entries) or without
