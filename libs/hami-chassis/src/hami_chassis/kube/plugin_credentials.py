"""Tokens from an exec plugin or an auth provider of a kubeconfig, by kubernetes-asyncio."""

from __future__ import annotations

from pathlib import Path

from kubernetes_asyncio import client
from kubernetes_asyncio.config import ConfigException, kube_config

from hami_chassis.clock import Clock
from hami_chassis.kube.credentials import CredentialsUnusable

_REFRESH_SECONDS = 60.0  # the loader runs the plugin again only when its token is about to end


class PluginAuthorization:
    """The bearer token of the loader, renewed by loading again."""

    def __init__(self, path: Path, context: str, clock: Clock) -> None:
        self._path = path
        self._context = context
        self._clock = clock
        self._value: str | None = None
        self._read_at = float("-inf")

    @classmethod
    async def load(cls, path: Path, context: str, clock: Clock) -> PluginAuthorization:
        """Raises CredentialsUnusable when the plugin gives no token."""
        authorization = cls(path, context, clock)
        await authorization.header()
        return authorization

    async def header(self) -> str | None:
        if self._clock.monotonic() - self._read_at >= _REFRESH_SECONDS:
            configuration = client.Configuration()
            try:
                await kube_config.load_kube_config(
                    config_file=str(self._path),
                    context=self._context or None,
                    client_configuration=configuration,
                    persist_config=False,
                )
            except (ConfigException, OSError, ValueError, KeyError) as error:
                raise CredentialsUnusable(f"kubeconfig {self._path}: its plugin gave no token: {error}") from error
            self._value = configuration.api_key.get("BearerToken")
            if self._value is None:
                raise CredentialsUnusable(
                    f"kubeconfig {self._path}: its plugin gave no token (plugins that give certificates are not served)"
                )
            self._read_at = self._clock.monotonic()
        return self._value
