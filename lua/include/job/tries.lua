--[[ tries: decides whether a job that has failed, or has lost a worker, may run again.

Only the failures and losses since the last saved step of a durable job count; `base` has the numbers at that step. A job
has at most TIMES times its limits in all, so that a job which saves a step in each run dies, too.

Uses: state(count)
]]

local TIMES = 10

--- Return whether a job may run again after `count(job, name)` failures or losses (`failed` or `lost`). `most_of`
--- is the field with the most of them.
local function may_run_again(job, name, most_of)
  local times, most = count(job, name), count(job, most_of)
  local failed, lost = (job.base or ''):match('^(%d+)/(%d+)$')
  local before = tonumber(name == 'failed' and failed or lost) or 0
  return times - before < most and times < TIMES * most
end
