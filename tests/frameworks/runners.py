"""Each framework as its documentation says to use it; only the base URL is ours.

A framework that is not installed skips the test. Nothing here knows the proxy's words: no header, no id, no hook.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import httpx2
import openai
import pytest

from tests.frameworks.errands import ROOM, Errand

Run = Callable[[Errand], Awaitable[str]]
"""Runs one errand and returns the framework's final answer."""

KEY = "any"
MODEL = "policy"


@asynccontextmanager
async def gpt(errand: Errand) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=errand.openai_url, api_key=KEY, max_retries=0) as client:
        yield client


async def openai_agents(errand: Errand) -> str:
    """OpenAI Agents SDK: an agent as a tool, or a handoff."""
    sdk: Any = pytest.importorskip("agents", reason="openai-agents is not installed")
    sdk.set_tracing_disabled(True)
    settings = sdk.ModelSettings(max_tokens=errand.max_tokens)
    async with gpt(errand) as client:
        kind = sdk.OpenAIResponsesModel if errand.wire == "responses" else sdk.OpenAIChatCompletionsModel
        model = kind(MODEL, client)

        def agent(name: str, **more: Any) -> Any:
            return sdk.Agent(name=name, model=model, model_settings=settings, **more)

        tools = [sdk.function_tool(tool) for tool in errand.tools]
        whole = agent("finder", instructions=errand.system, tools=tools)
        if errand.expert or errand.handoff:
            expert = agent("expert", instructions="You are the expert.", tools=tools)
            asking = expert.as_tool("ask_expert", "Asks the expert.")
            given = {"handoffs": [expert]} if errand.handoff else {"tools": [asking]}
            whole = agent("lead", instructions=errand.system, **given)
        if not errand.stream:
            return str((await sdk.Runner.run(whole, errand.task)).final_output)
        result = sdk.Runner.run_streamed(whole, errand.task)
        async for _ in result.stream_events():
            pass
        return str(result.final_output)


async def pydantic_ai(errand: Errand) -> str:
    """pydantic-ai: an agent inside a tool."""
    kit: Any = pytest.importorskip("pydantic_ai", reason="pydantic-ai-slim is not installed")
    model, close = _pydantic_model(errand)

    async def stream(_context: Any, events: Any) -> None:
        async for _ in events:
            pass

    handler = stream if errand.stream else None
    settings = {"max_tokens": errand.max_tokens}

    def agent(system: str, tools: list[Any], **more: Any) -> Any:
        return kit.Agent(model, instructions=system, tools=tools, model_settings=settings, retries=0, **more)

    shortening = [_pydantic_summaries(agent("Summarize this conversation.", []))] if errand.compacts else []
    whole = agent(errand.system, list(errand.tools), capabilities=shortening)
    if errand.expert:
        expert = agent("You are the expert.", list(errand.tools))

        async def ask_expert(input: str) -> str:
            """Asks the expert."""
            return str((await expert.run(input, event_stream_handler=handler)).output)

        whole = agent(errand.system, [ask_expert])
    try:
        return str((await whole.run(errand.task, event_stream_handler=handler)).output)
    finally:
        await close()


def _pydantic_summaries(summarizer: Any) -> Any:
    """Old messages are summarized by an agent of its own, as the documentation has it; the newest round is kept."""
    capabilities: Any = pytest.importorskip("pydantic_ai.capabilities")

    async def summarize_old_messages(messages: list[Any]) -> list[Any]:
        if len(messages) <= 2 * ROOM:
            return messages
        summary = await summarizer.run(message_history=messages[:-2])
        return [*summary.new_messages(), *messages[-2:]]

    return capabilities.ProcessHistory(summarize_old_messages)


def _pydantic_model(errand: Errand) -> tuple[Any, Callable[[], Awaitable[None]]]:
    if errand.wire == "messages":
        claude = anthropic.AsyncAnthropic(base_url=errand.url, api_key=KEY, max_retries=0)
        models: Any = pytest.importorskip("pydantic_ai.models.anthropic")
        providers: Any = pytest.importorskip("pydantic_ai.providers.anthropic")
        return models.AnthropicModel(MODEL, provider=providers.AnthropicProvider(anthropic_client=claude)), claude.close
    client = openai.AsyncOpenAI(base_url=errand.openai_url, api_key=KEY, max_retries=0)
    models = pytest.importorskip("pydantic_ai.models.openai")
    providers = pytest.importorskip("pydantic_ai.providers.openai")
    kind = models.OpenAIResponsesModel if errand.wire == "responses" else models.OpenAIChatModel
    return kind(MODEL, provider=providers.OpenAIProvider(openai_client=client)), client.close


async def strands(errand: Errand) -> str:
    """Strands: an agent inside a tool."""
    kit: Any = pytest.importorskip("strands", reason="strands-agents is not installed")
    model = _strands_model(errand)

    def agent(system: str, tools: list[Any], **more: Any) -> Any:
        return kit.Agent(model=model, system_prompt=system, tools=tools, callback_handler=None, **more)

    tools = [kit.tool(tool) for tool in errand.tools]
    managers: Any = pytest.importorskip("strands.agent.conversation_manager")
    summarizing = managers.SummarizingConversationManager(summary_ratio=0.5, preserve_recent_messages=2)
    whole = agent(errand.system, tools, **({"conversation_manager": summarizing} if errand.compacts else {}))
    if errand.expert:

        async def ask_expert(input: str) -> str:
            """Asks the expert."""
            return str(await agent("You are the expert.", tools).invoke_async(input)).strip()

        whole = agent(errand.system, [kit.tool(ask_expert)])
    try:
        if errand.compacts:  # it waits for its summary inside the event loop, which is the proxy's too
            return str(await asyncio.to_thread(whole, errand.task)).strip()
        return str(await whole.invoke_async(errand.task)).strip()
    finally:
        if errand.wire == "messages":  # the others open a client for each call
            await model.client.close()


def _strands_model(errand: Errand) -> Any:
    if errand.wire == "messages":
        models: Any = pytest.importorskip("strands.models.anthropic")
        return models.AnthropicModel(
            client_args={"base_url": errand.url, "api_key": KEY, "max_retries": 0},
            model_id=MODEL,
            max_tokens=errand.max_tokens,
        )
    client = {"base_url": errand.openai_url, "api_key": KEY, "max_retries": 0}
    if errand.wire == "responses":
        models = pytest.importorskip("strands.models.openai_responses")
        params = {"max_output_tokens": errand.max_tokens}
        return models.OpenAIResponsesModel(client_args=client, model_id=MODEL, params=params)
    models = pytest.importorskip("strands.models.openai")
    params = {"max_tokens": errand.max_tokens}
    return models.OpenAIModel(client_args=client, model_id=MODEL, params=params, stream=errand.stream)


async def mini_swe_agent(errand: Errand) -> str:
    """mini-swe-agent with its model class that speaks HTTP itself (the default one needs LiteLLM); a real shell."""
    agents: Any = pytest.importorskip("minisweagent.agents.default", reason="mini-swe-agent is not installed")
    models: Any = pytest.importorskip("minisweagent.models")
    environments: Any = pytest.importorskip("minisweagent.environments.local")
    model = models.get_model_class(MODEL, "openrouter")(
        model_name=MODEL, model_kwargs={"max_tokens": errand.max_tokens}, cost_tracking="ignore_errors"
    )
    model._api_url = f"{errand.openai_url}/chat/completions"  # it has no setting for it
    templates = {"system_template": errand.system, "instance_template": "{{task}}"}
    agent = agents.DefaultAgent(model, environments.LocalEnvironment(), **templates)
    return str((await asyncio.to_thread(agent.run, errand.task))["submission"]).strip()


async def smolagents(errand: Errand) -> str:
    """smolagents' tool-calling agent; a managed agent. It is synchronous."""
    kit: Any = pytest.importorskip("smolagents", reason="smolagents is not installed")
    model = kit.OpenAIModel(
        model_id=MODEL,
        api_base=errand.openai_url,
        api_key=KEY,
        client_kwargs={"max_retries": 0},
        max_tokens=errand.max_tokens,
    )

    def agent(tools: list[Any], **more: Any) -> Any:
        return kit.ToolCallingAgent(
            tools=tools, model=model, stream_outputs=errand.stream, verbosity_level=0, max_steps=6, **more
        )

    tools = [kit.tool(tool) for tool in errand.tools]
    whole = agent(tools, instructions=errand.system)
    if errand.expert:
        expert = agent(tools, name="expert", description="Counts things.", instructions="You are the expert.")
        whole = agent([], managed_agents=[expert], instructions=errand.system)
    try:
        return str(await asyncio.to_thread(whole.run, errand.task))
    finally:
        model.client.close()


async def deepagents(errand: Errand) -> str:
    """deepagents on LangChain's OpenAI or Anthropic model; its general-purpose subagent."""
    kit: Any = pytest.importorskip("deepagents", reason="deepagents is not installed")
    return await _langchain_answer(kit.create_deep_agent, errand)


async def langchain(errand: Errand) -> str:
    """LangChain's own agent."""
    kit: Any = pytest.importorskip("langchain.agents", reason="langchain is not installed")
    return await _langchain_answer(kit.create_agent, errand, summarizes=errand.compacts)


async def _langchain_answer(create: Callable[..., Any], errand: Errand, *, summarizes: bool = False) -> str:
    core: Any = pytest.importorskip("langchain_core.tools", reason="langchain-core is not installed")
    model, close = _langchain_model(errand)
    more: dict[str, Any] = {"tools": [core.tool(tool) for tool in errand.tools], "system_prompt": errand.system}
    if summarizes:
        middleware: Any = pytest.importorskip("langchain.agents.middleware")
        shortening = middleware.SummarizationMiddleware(model, trigger=("messages", 2 * ROOM), keep=("messages", 2))
        more["middleware"] = [shortening]
    agent = create(model=model, **more)
    asked = {"messages": [{"role": "user", "content": errand.task}]}
    last: dict[str, Any] = {}
    try:
        if not errand.stream:
            last = await agent.ainvoke(asked)
        else:
            async for mode, state in agent.astream(asked, stream_mode=["messages", "values"]):
                last = state if mode == "values" else last
    finally:
        await close()
    return str(last["messages"][-1].text)


def _langchain_model(errand: Errand) -> tuple[Any, Callable[[], Awaitable[None]]]:
    """The model and how to close its connections, which LangChain shares and keeps for as long as the process runs."""
    common: dict[str, Any] = {"model": MODEL, "api_key": KEY, "max_retries": 0, "max_tokens": errand.max_tokens}
    if errand.wire == "messages":
        models: Any = pytest.importorskip("langchain_anthropic", reason="langchain-anthropic is not installed")
        claude = models.ChatAnthropic(base_url=errand.url, **common)
        return claude, claude._async_client.close
    models = pytest.importorskip("langchain_openai", reason="langchain-openai is not installed")
    by_responses = errand.wire == "responses"
    http = httpx2.AsyncClient()
    common |= {"base_url": errand.openai_url, "http_async_client": http, "use_responses_api": by_responses}
    return models.ChatOpenAI(**common), http.aclose
