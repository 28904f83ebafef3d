"""`Inspection`: everything a person may want to know of a skill before it is loaded."""

from collections.abc import Mapping
from typing import Any

from skillwire.core.manifest import Manifest
from skillwire.core.uri import SKILL_FILE
from skillwire.host.approval.approvals import Standing
from skillwire.host.approval.provenance import Judgement
from skillwire.host.attention import Attention
from skillwire.host.conversation import Conversation
from skillwire.host.loading import recorded
from skillwire.host.previewing import Preview, preview
from skillwire.host.refusals import Refusal
from skillwire.host.registry.known import KnownSkill
from skillwire.host.running.results import ScriptPreview
from skillwire.host.running.running import preview_script
from skillwire.host.surroundings import completed, missing_of
from skillwire.runner import Availability


class Inspection(Conversation):
    """Questions about skills that load nothing."""

    async def find(self, reference: str) -> KnownSkill:
        """Return the skill that `reference` means; a server's unlisted skill by `label/URI`.

        Raises:
            UnknownReferenceError: No skill has this reference.
            AmbiguousReferenceError: Several could be meant.
            SkillError: The server cannot be asked, or does not have it.
        """
        return await self._machinery().registry.resolve(reference)

    async def preview(self, reference: str, path: str = SKILL_FILE) -> Preview:
        """Fetch one file of a skill for a person to look at. Nothing is loaded by it.

        Raises:
            SkillError: The file cannot be had, or does not match the entry.
        """
        return await preview(self._machinery(), reference, path)

    @property
    def scripts_availability(self) -> Availability | None:
        """Whether scripts can be run on this machine, and if not, why; None when this host runs none."""
        runner = self._machinery().runner
        return None if runner is None else runner.availability

    async def preview_script(
        self, reference: str, script: str, arguments: Mapping[str, Any] | None = None
    ) -> ScriptPreview:
        """Say what `run_script` would run: the bytes, where, and on which terms. Nothing is run or loaded.

        Without `arguments` they are not checked.

        Raises:
            ScriptsOffError: This host runs no scripts.
            SkillError: There is no such script, or it cannot be had or does not take these arguments.
        """
        machinery = self._machinery()
        with recorded(machinery.audit, "preview_script", reference):
            skill = await machinery.registry.resolve(reference)
            return await preview_script(machinery, skill, script, arguments)

    def attention(self, skill: KnownSkill) -> Attention:
        """Say how much of the model's attention the settings give a skill."""
        return self._machinery().attention.of(skill)

    async def judge(self, skill: KnownSkill) -> Judgement | None:
        """Ask the provenance provider about exactly this content; None when there is no provider."""
        judge = self._machinery().judge
        return None if judge is None else await judge.of(skill)

    async def missing_dependencies(self, skill: KnownSkill) -> Refusal | None:
        """Say which tools and prompts a skill declares to need and its server does not list.

        Raises:
            SkillError: The server cannot be asked what it has.
        """
        return await missing_of(self._machinery().fetcher, skill)

    async def complete(
        self, label: str, template: str, variable: str, typed: str, *, others: Mapping[str, str] | None = None
    ) -> tuple[str, ...]:
        """Ask a server how a variable of one of its templates, in `view.templates`, could go on.

        The values are a stranger's words for a person to choose from. What the
        template expands to is the URI of a skill, found as `label/URI`.

        Raises:
            UnknownReferenceError: There is no such server, template or variable.
            SkillError: The server cannot be asked.
        """
        machinery = self._machinery()
        view = machinery.registry.view
        return await completed(machinery.fetcher, view, label, template, variable, typed, others)

    def standing(self, skill: KnownSkill) -> Standing:
        """Say how the user's word stands for a skill as it is now."""
        return self._machinery().consent.standing(skill)

    def previous(self, skill: KnownSkill) -> Manifest | None:
        """Return the files of a skill as the user last approved them, if ever; nothing is fetched."""
        return self._machinery().consent.previous(skill)
