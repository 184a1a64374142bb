"""WHEN: cron, triggers and the planner are pure arithmetic; the scheduler is the loop that applies them."""
