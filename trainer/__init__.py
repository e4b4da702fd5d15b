"""The only torch of Mosaic: sequences, the TRL trainer, publishing weights, jobs and the schedule.

    records.Trajectory + credit -> sequences -> batches -> policy_trainer (TRL) -> checkpoint -> publish -> vLLM

May import `mosaic` only. Import the modules directly: `policy_trainer` takes 12 s to import, the others do not.
"""
