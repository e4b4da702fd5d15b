"""An attempt with the settings of docs/frameworks/openhands.md: ADDRESS TASK. The Python that runs it has the SDK."""

import sys

from openhands.sdk import LLM, Agent, Conversation, Tool
from openhands.tools.terminal import TerminalTool

llm = LLM(model="openai/policy", base_url=sys.argv[1], api_key="any", usage_id="agent", num_retries=0)
agent = Agent(llm=llm, tools=[Tool(name=TerminalTool.name)])
conversation = Conversation(agent=agent, workspace=".", visualizer=None)
conversation.send_message(sys.argv[2])
conversation.run()
for event in conversation.state.events:
    if event.source == "agent" and hasattr(event, "llm_message"):
        sys.stdout.write("".join(getattr(part, "text", "") for part in event.llm_message.content) + "\n")
