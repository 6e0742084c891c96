--[[ definition_digest: makes a short digest of what a schedule is. ]]

--- Return 8 hex digits for a rule and a job.
local function definition_digest(rule, job)
  return redis.sha1hex(rule .. '\n' .. job):sub(1, 8)
end
