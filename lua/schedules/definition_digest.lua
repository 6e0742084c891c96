--[[ definition_digest: makes digests of a schedule's definition (its rule and its job), and of the job alone. ]]

--- Return 8 hex digits for a rule and a job.
local function definition_digest(rule, job)
  return redis.sha1hex(rule .. '\n' .. job):sub(1, 8)
end

--- Return 32 hex digits for a job. The log has this digest, so that a different job in its place is noticed.
local function job_digest(job)
  return redis.sha1hex(job):sub(1, 32)
end
